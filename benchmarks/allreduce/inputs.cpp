#include "benchmarks/allreduce/inputs.h"

#include <algorithm>
#include <cstring>

#include "benchmarks/allreduce/parse_name.h"
#include "ddl/allreduce/combine.h"

namespace spillway::tools {
namespace {

using ddl::Element, ddl::Reduction;

constexpr auto kElements = value_names<Element>({{Element::float32, "float32"},
                                                 {Element::float64, "float64"},
                                                 {Element::float16, "float16"},
                                                 {Element::bfloat16, "bfloat16"},
                                                 {Element::int32, "int32"},
                                                 {Element::int64, "int64"}});
constexpr auto kReductions = value_names<Reduction>({{Reduction::sum, "sum"},
                                                     {Reduction::average, "average"},
                                                     {Reduction::maximum, "max"},
                                                     {Reduction::minimum, "min"}});

/// The number of kinds of positions; a pattern has a value for each.
constexpr int kKinds = 256;
/// Elements that are compared at once.
constexpr int64_t kBlock = 4096;

/// Returns the kind of a position: eight bits of a hash (SplitMix64's). So a shift by any distance changes the kinds.
size_t kind_of(int64_t position) {
  auto x = static_cast<uint64_t>(position) + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x >> 56;
}

/// Returns a number from 1 to 16. The greater share of it is the same on every rank. So the maximum and the minimum of
/// many ranks tell positions apart.
int64_t number(int rank, int kind) {
  return 1 + kind % 13 + static_cast<int64_t>(kind_of(int64_t{rank} * kKinds + kind) % 4);
}

template <class Partial>
std::vector<std::byte> rounded(Element element, Reduction reduction, const std::vector<int64_t>& numbers, int ranks) {
  const std::vector<Partial> partial(numbers.begin(), numbers.end());
  std::vector<std::byte> bytes(numbers.size() * ddl::element_bytes(element));
  ddl::finish(element, reduction, bytes.data(), partial.data(), std::ssize(numbers), ranks);
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

int64_t reduced(Reduction reduction, int ranks, int kind) {
  int64_t result = number(0, kind);
  for (int rank = 1; rank < ranks; ++rank) {
    const int64_t next = number(rank, kind);
    result = reduction == Reduction::maximum   ? std::max(result, next)
             : reduction == Reduction::minimum ? std::min(result, next)
                                               : result + next;
  }
  return result;
}

/// Returns one rank's contribution, by kind.
std::vector<std::byte> pattern_of(Element element, int rank) {
  std::vector<int64_t> numbers;
  for (int kind = 0; kind < kKinds; ++kind) numbers.push_back(number(rank, kind));
  return as_elements(element, Reduction::sum, numbers, 1);
}

/// Returns the result of all ranks, by kind.
std::vector<std::byte> pattern_of(Element element, Reduction reduction, int ranks) {
  std::vector<int64_t> numbers;
  for (int kind = 0; kind < kKinds; ++kind) numbers.push_back(reduced(reduction, ranks, kind));
  return as_elements(element, reduction, numbers, ranks);
}

template <size_t kBytes>
void lay(std::span<std::byte> elements, int64_t begin, const std::byte* pattern) {
  for (size_t at = 0; at < elements.size(); at += kBytes)
    std::memcpy(elements.data() + at, pattern + kind_of(begin++) * kBytes, kBytes);
}

/// Writes the pattern's values from position `begin` on.
void lay(std::span<std::byte> elements, Element element, int64_t begin, const std::vector<std::byte>& pattern) {
  switch (ddl::element_bytes(element)) {
    case 2:
      return lay<2>(elements, begin, pattern.data());
    case 4:
      return lay<4>(elements, begin, pattern.data());
    default:
      return lay<8>(elements, begin, pattern.data());
  }
}

}  // namespace

Element parse_element(std::string_view name) {
  return parse_name(kElements, "--type", name);
}

Reduction parse_reduction(std::string_view name) {
  return parse_name(kReductions, "--op", name);
}

std::string_view name_of_op(Reduction reduction) {
  return kReductions.name(reduction);
}

void contribute(std::span<std::byte> elements, Element element, int rank, int64_t begin) {
  lay(elements, element, begin, pattern_of(element, rank));
}

std::vector<std::byte> contribution(Element element, int rank, int64_t count) {
  std::vector<std::byte> all(count * ddl::element_bytes(element));
  contribute(all, element, rank);
  return all;
}

Expected::Expected(const Problem& problem, int rank, int ranks)
    : element_(problem.element), begin_(problem.result(rank, ranks).begin) {
  const ddl::Range all{0, problem.count};
  if (problem.reduces()) {
    segments_.push_back({all, pattern_of(element_, problem.reduction, ranks)});
  } else if (problem.collective == Collective::broadcast) {
    segments_.push_back({all, pattern_of(element_, kRoot)});
  } else {
    for (int owner = 0; owner < ranks; ++owner)
      segments_.push_back({ddl::part_of(all, owner, ranks), pattern_of(element_, owner)});
  }
}

Expected::Expected(Element element, Reduction reduction, int ranks)
    : Expected({.element = element, .reduction = reduction, .count = ddl::kWhole}, 0, ranks) {}

int64_t Expected::count_wrong(std::span<const std::byte> result) const {
  const int64_t bytes = ddl::element_bytes(element_), end = begin_ + std::ssize(result) / bytes;
  int64_t wrong = 0;
  for (const Segment& segment : segments_) {
    const ddl::Range here{std::max(begin_, segment.elements.begin), std::min(end, segment.elements.end)};
    if (here.size() > 0)
      wrong += count_wrong(result.subspan((here.begin - begin_) * bytes, here.size() * bytes), here.begin, segment);
  }
  return wrong;
}

int64_t Expected::count_wrong(std::span<const std::byte> result, int64_t begin, const Segment& segment) const {
  const size_t bytes = ddl::element_bytes(element_);
  std::vector<std::byte> expected(kBlock * bytes);
  int64_t wrong = 0;
  for (size_t at = 0; at < result.size(); at += expected.size(), begin += kBlock) {
    const size_t size = std::min(expected.size(), result.size() - at);
    lay(std::span(expected).first(size), element_, begin, segment.pattern);
    const std::byte* block = result.data() + at;
    if (std::memcmp(block, expected.data(), size) == 0) continue;
    for (size_t k = 0; k < size; k += bytes) wrong += std::memcmp(block + k, expected.data() + k, bytes) != 0;
  }
  return wrong;
}

}  // namespace spillway::tools
