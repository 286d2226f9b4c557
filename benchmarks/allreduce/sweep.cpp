#include "benchmarks/allreduce/sweep.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "benchmarks/allreduce/inputs.h"
#include "core/bytes.h"
#include "core/error.h"

namespace spillway::tools {
namespace {

constexpr const char* kDefaultSizes[] = {"64KiB", "256KiB", "1MiB", "4MiB", "16MiB"};
constexpr size_t kMaxSizes = 10'000;

std::vector<int64_t> listed(const std::vector<std::string>& sizes, const std::vector<std::string>& types) {
  std::vector<int64_t> all;
  for (const std::string& size : sizes) {
    const int64_t bytes = parse_bytes(size);
    for (const std::string& type : types)
      if (const int64_t element = ddl::element_bytes(parse_element(type)); bytes < element || bytes % element != 0)
        throw BadRequest(
            str("--sizes: ", size, "; allowed: whole elements of ", type, ", ", element, " bytes and more"));
    all.push_back(bytes);
  }
  return all;
}

void check(const Sweep& sweep) {
  if (!sweep.sizes.empty()) throw BadRequest("--sizes is given with --begin; allowed: one of them");
  if (sweep.begin.empty()) throw BadRequest("--end, --factor and --step need --begin, the first size");
  if (sweep.factor != 0 && !sweep.step.empty()) throw BadRequest("--factor is given with --step; allowed: one of them");
  if (sweep.factor != 0 && !(sweep.factor > 1 && std::isfinite(sweep.factor)))
    throw BadRequest(str("--factor is ", sweep.factor, "; allowed: more than 1"));
  if (!sweep.step.empty() && parse_bytes(sweep.step) < 1)
    throw BadRequest(str("--step: ", sweep.step, "; allowed: 1 byte and more"));
}

std::vector<int64_t> swept(const Sweep& sweep, int64_t element) {
  const int64_t begin = parse_bytes(sweep.begin), end = sweep.end.empty() ? begin : parse_bytes(sweep.end);
  if (begin < element || end < begin)
    throw BadRequest(str("--begin: ", sweep.begin, ", --end: ", sweep.end.empty() ? sweep.begin : sweep.end,
                         "; allowed: ", element, " bytes (an element) and more, in this order"));
  const int64_t step = sweep.step.empty() ? 0 : parse_bytes(sweep.step);
  const double factor = sweep.factor == 0 ? 2 : sweep.factor;
  std::vector<int64_t> all;
  for (auto bytes = begin; bytes <= end;) {
    if (const int64_t whole = bytes / element * element; all.empty() || all.back() != whole) all.push_back(whole);
    if (all.size() > kMaxSizes)
      throw BadRequest(str("--begin … --end: more than ", kMaxSizes, " sizes; allowed: a larger --step or --factor"));
    const double next = step > 0 ? static_cast<double>(bytes) + static_cast<double>(step)
                                 : std::max(static_cast<double>(bytes) * factor, static_cast<double>(bytes) + 1);
    if (next > static_cast<double>(end)) break;
    bytes = step > 0 ? bytes + step : static_cast<int64_t>(next);
  }
  return all;
}

/// Returns the names in `text`, each of which must be one of `names`.
std::vector<std::string> named(const std::string& text, const std::vector<std::string>& names, const char* option) {
  if (text == "all") return names;
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      std::string allowed;
      for (const std::string& name : names) allowed += name + ", ";
      throw BadRequest(str(option, ": ", word, "; allowed: ", allowed, "several with commas, or all"));
    }
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  if (words.empty()) throw BadRequest(str(option, " is empty"));
  return words;
}

}  // namespace

std::vector<int64_t> sizes_of(const Sweep& sweep, const std::vector<std::string>& types) {
  const bool is_swept = !sweep.begin.empty() || !sweep.end.empty() || !sweep.step.empty() || sweep.factor != 0;
  if (!is_swept)
    return listed(sweep.sizes.empty() ? std::vector<std::string>(std::begin(kDefaultSizes), std::end(kDefaultSizes))
                                      : sweep.sizes,
                  types);
  check(sweep);
  int64_t element = 1;
  for (const std::string& type : types) element = std::max(element, ddl::element_bytes(parse_element(type)));
  return swept(sweep, element);
}

std::string step_of(const Sweep& sweep, size_t sizes) {
  if (sweep.begin.empty()) return str(sizes, "(sizes)");
  return sweep.step.empty() ? str(sweep.factor == 0 ? 2 : sweep.factor, "(factor)")
                            : str(parse_bytes(sweep.step), "(bytes)");
}

std::vector<std::string> parse_types(const std::string& text) {
  return named(text, {"float32", "float64", "float16", "bfloat16", "int32", "int64"}, "--type");
}

std::vector<std::string> parse_operations(const std::string& text) {
  return named(text, {"sum", "average", "max", "min"}, "--op");
}

std::vector<std::string> parse_collectives(const std::string& text) {
  return named(text, {"allreduce", "reduce_scatter", "all_gather", "broadcast"}, "--collective");
}

}  // namespace spillway::tools
