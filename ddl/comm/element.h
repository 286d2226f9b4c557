/// The types of vectors' elements, and the ways to reduce them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace spillway::ddl {

/// An element's type. 16-bit floats are summed in float32: partial results of several ranks' elements are kept, and
/// travel, as float32. The result is rounded once.
enum class Element : uint8_t { float32, float64, float16, bfloat16, int32, int64 };

/// A way to reduce elements. `average` divides the sum by the number of ranks, once, at the end; integers are rounded
/// towards zero. A NaN that any rank has is the maximum and the minimum. Sums of integers wrap around.
enum class Reduction : int64_t { sum, average, maximum, minimum };

/// Returns the bytes of one element.
int64_t element_bytes(Element element);
/// Returns the bytes of one partial result for that type of element.
int64_t partial_bytes(Element element);
/// Returns the name: `float16`; `sum`.
std::string_view name_of(Element element);
/// Returns the name: `sum`.
std::string_view name_of(Reduction reduction);

/// The number of bytes that stands for all bytes, however many there are.
inline constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

/// Elements [begin, end) of a vector.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Returns part `part` of `parts` parts of (nearly) equal length.
inline Range part_of(Range whole, int64_t part, int64_t parts) {
  // This computes size·i/parts without overflow for any size.
  const auto cut = [&](int64_t i) { return whole.size() / parts * i + whole.size() % parts * i / parts; };
  return {whole.begin + cut(part), whole.begin + cut(part + 1)};
}

/// A vector to be reduced. Input and output have the same number of elements, and are the same memory or do not
/// overlap.
struct ReduceBuffers {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  Element element = Element::float32;
  int64_t count() const { return std::ssize(output) / element_bytes(element); }
};

/// Returns the buffers that reduce `values` in place.
template <class T>
ReduceBuffers in_place(std::span<T> values, Element element) {
  return {std::as_bytes(values), std::as_writable_bytes(values), element};
}

}  // namespace spillway::ddl
