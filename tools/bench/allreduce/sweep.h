/// The sizes, types, operations and collectives that a benchmark of collectives goes through.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::tools {

/// Sizes as they are given: a list, or from `begin` to `end` by `factor` or `step`, as nccl-tests takes them.
struct Sweep {
  std::vector<std::string> sizes = {};          ///< empty: none is given
  std::string begin = {}, end = {}, step = {};  ///< sizes; empty: not given
  double factor = 0;                            ///< 0: not given
};

/// In bytes. A list must be of whole elements of every one of `types`; a sweep is rounded down to the largest of them.
/// Nothing given: 64 KiB to 16 MiB by 4. Throws BadRequest naming the option, its value and what is allowed.
std::vector<int64_t> sizes_of(const Sweep& sweep, const std::vector<std::string>& types);
/// For people, as nccl-tests says it: `2(factor)`, `1048576(bytes)`, `5(sizes)`.
std::string step_of(const Sweep& sweep, size_t sizes);

/// Names of types, operations and collectives: one, several with commas, or `all`. Throws BadRequest naming what is
/// none, and what is allowed.
std::vector<std::string> types_named(const std::string& text);
std::vector<std::string> ops_named(const std::string& text);
std::vector<std::string> collectives_named(const std::string& text);

}  // namespace spillway::tools
