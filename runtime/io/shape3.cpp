#include "runtime/io/shape3.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace spillway {

std::string format_shape(const Shape3& shape) {
  return str(shape[0], "x", shape[1], "x", shape[2]);
}

Shape3 parse_shape(std::string_view text) {
  auto refuse = [&] {
    throw BadRequest(
        str("shape '", text, "' is not of the form DxHxW (155x240x240) or N (a cube), extents 1 to 32767"));
  };
  Shape3 shape{};
  size_t count = 0;
  const char *at = text.data(), *end = text.data() + text.size();
  while (true) {
    if (count == 3) refuse();
    auto [next, error] = std::from_chars(at, end, shape[count]);
    if (error != std::errc() || shape[count] < 1 || shape[count] > 32767) refuse();
    ++count;
    if (next == end) break;
    if (*next != 'x') refuse();
    at = next + 1;
  }
  if (count == 2) refuse();
  if (count == 1) shape[1] = shape[2] = shape[0];
  return shape;
}

void check_multiple(std::string_view who, const Shape3& shape, int64_t multiple) {
  constexpr const char* kAxes[] = {"depth", "height", "width"};
  for (size_t d = 0; d < 3; ++d) {
    if (shape[d] >= 1 && shape[d] % multiple == 0) continue;
    Shape3 nearest{};
    for (size_t k = 0; k < 3; ++k) nearest[k] = std::max<int64_t>(1, (shape[k] + multiple / 2) / multiple) * multiple;
    throw BadRequest(str(who, ": shape ", format_shape(shape), " has ", kAxes[d], " ", shape[d],
                         ", which is not a positive multiple of ", multiple, "; the nearest allowed is ",
                         format_shape(nearest)));
  }
}

Shape3 round_up_shape(const Shape3& shape, int64_t multiple) {
  Shape3 rounded{};
  for (size_t d = 0; d < 3; ++d) rounded[d] = (shape[d] + multiple - 1) / multiple * multiple;
  return rounded;
}

}  // namespace spillway
