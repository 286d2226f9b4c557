/// What vectors are made of, and how they are reduced.
#pragma once
#include <cstdint>
#include <limits>
#include <string_view>

namespace spillway::ddl {

/// An element's type. 16-bit floats are summed in float32: what several ranks' elements make is kept, and travels, as
/// float32 until the result is rounded, once.
enum class Element : uint8_t { float32, float64, float16, bfloat16, int32, int64 };

/// `average` divides the sum by the number of ranks, once, at the end; integers towards zero. A NaN that any rank has
/// is the maximum and the minimum. Sums of integers wrap around.
enum class Reduction : int64_t { sum, average, maximum, minimum };

int64_t element_bytes(Element element);
/// Of what partial results are kept in.
int64_t partial_bytes(Element element);
/// `float16`; `sum`.
std::string_view name_of(Element element);
std::string_view name_of(Reduction reduction);

/// Of bytes: however many there are.
inline constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

/// Elements [begin, end) of a vector.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Part `part` of `parts` of (nearly) equal length.
inline Range part_of(Range whole, int64_t part, int64_t parts) {
  // size·i/parts without overflow for any size.
  const auto cut = [&](int64_t i) { return whole.size() / parts * i + whole.size() % parts * i / parts; };
  return {whole.begin + cut(part), whole.begin + cut(part + 1)};
}

}  // namespace spillway::ddl
