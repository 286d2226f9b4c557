/// The sizes, types, operations and collectives that a benchmark of collectives goes through.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::tools {

/// The sizes as the user gives them: a list, or from `begin` to `end` by `factor` or `step`, as nccl-tests takes them.
struct Sweep {
  std::vector<std::string> sizes = {};          ///< empty: not given
  std::string begin = {}, end = {}, step = {};  ///< sizes; empty: not given
  double factor = 0;                            ///< 0: not given
};

/// Returns the sizes in bytes. A list must be of whole elements of every one of `types`; a sweep is rounded down to the
/// largest of them. With nothing given the sizes are 64 KiB to 16 MiB by 4. Throws BadRequest naming the option, its
/// value and the allowed values.
std::vector<int64_t> sizes_of(const Sweep& sweep, const std::vector<std::string>& types);
/// Returns the step for the user, as nccl-tests says it: `2(factor)`, `1048576(bytes)`, `5(sizes)`.
std::string step_of(const Sweep& sweep, size_t sizes);

/// Returns names of types: one, several with commas, or `all`. parse_operations() and parse_collectives() do this for
/// operations and collectives. Each throws BadRequest naming a wrong name and the allowed ones.
std::vector<std::string> parse_types(const std::string& text);
std::vector<std::string> parse_operations(const std::string& text);
std::vector<std::string> parse_collectives(const std::string& text);

}  // namespace spillway::tools
