#include "tools/allreduce_values.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "ddl/arithmetic.h"

namespace spillway::tools {
namespace {

using ddl::Element, ddl::Reduction;

constexpr int kPeriod = 17;
/// Of the pattern that results are compared with at once.
constexpr int kRepeats = 256;

int64_t number(int rank, int k) {
  return (k + rank) % kPeriod;
}

template <class Partial>
std::vector<std::byte> rounded(Element element, Reduction reduction, const std::vector<int64_t>& numbers, int ranks) {
  const std::vector<Partial> partial(numbers.begin(), numbers.end());
  std::vector<std::byte> bytes(numbers.size() * static_cast<size_t>(ddl::element_bytes(element)));
  ddl::finish(element, reduction, bytes.data(), partial.data(), static_cast<int64_t>(numbers.size()), ranks);
  return bytes;
}

std::vector<std::byte> as_elements(Element element, Reduction reduction, const std::vector<int64_t>& numbers,
                                   int ranks) {
  switch (element) {
    case Element::float64:
      return rounded<double>(element, reduction, numbers, ranks);
    case Element::int32:
      return rounded<int32_t>(element, reduction, numbers, ranks);
    case Element::int64:
      return rounded<int64_t>(element, reduction, numbers, ranks);
    default:
      return rounded<float>(element, reduction, numbers, ranks);
  }
}

int64_t reduced(Reduction reduction, int ranks, int k) {
  int64_t result = number(0, k);
  for (int rank = 1; rank < ranks; ++rank) {
    const int64_t next = number(rank, k);
    result = reduction == Reduction::maximum   ? std::max(result, next)
             : reduction == Reduction::minimum ? std::min(result, next)
                                               : result + next;
  }
  return result;
}

}  // namespace

Element element_named(std::string_view name) {
  for (const auto element :
       {Element::float32, Element::float64, Element::float16, Element::bfloat16, Element::int32, Element::int64})
    if (ddl::name_of(element) == name) return element;
  throw BadRequest(str("--type: ", name, "; allowed: float32, float64, float16, bfloat16, int32, int64"));
}

Reduction reduction_named(std::string_view name) {
  if (name == "sum") return Reduction::sum;
  if (name == "average") return Reduction::average;
  if (name == "max") return Reduction::maximum;
  if (name == "min") return Reduction::minimum;
  throw BadRequest(str("--op: ", name, "; allowed: sum, average, max, min"));
}

std::vector<std::byte> contribution(Element element, int rank, int64_t count) {
  std::vector<int64_t> numbers;
  for (int k = 0; k < kPeriod; ++k) numbers.push_back(number(rank, k));
  const auto pattern = as_elements(element, Reduction::sum, numbers, 1);
  std::vector<std::byte> all(static_cast<size_t>(count * ddl::element_bytes(element)));
  for (size_t begin = 0; begin < all.size(); begin += pattern.size())
    std::memcpy(all.data() + begin, pattern.data(), std::min(pattern.size(), all.size() - begin));
  return all;
}

Expected::Expected(Element element, Reduction reduction, int ranks)
    : element_bytes_(static_cast<size_t>(ddl::element_bytes(element))) {
  std::vector<int64_t> numbers;
  for (int k = 0; k < kPeriod * kRepeats; ++k) numbers.push_back(reduced(reduction, ranks, k % kPeriod));
  pattern_ = as_elements(element, reduction, numbers, ranks);
}

int64_t Expected::count_wrong(std::span<const std::byte> result) const {
  int64_t wrong = 0;
  for (size_t begin = 0; begin < result.size(); begin += pattern_.size()) {
    const size_t size = std::min(pattern_.size(), result.size() - begin);
    const std::byte* block = result.data() + begin;
    if (std::memcmp(block, pattern_.data(), size) == 0) continue;
    for (size_t k = 0; k < size; k += element_bytes_)
      wrong += std::memcmp(block + k, pattern_.data() + k, element_bytes_) != 0;
  }
  return wrong;
}

}  // namespace spillway::tools
