/// Extents of a volume.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

/// The depth, height and width in voxels, in the order of tensors: width is fastest.
using Shape3 = std::array<int64_t, 3>;

/// Returns the number of voxels.
constexpr int64_t voxel_count(const Shape3& shape) {
  return shape[0] * shape[1] * shape[2];
}

/// Formats a shape: `155x240x240`.
std::string format_shape(const Shape3& shape);

/// Reads `155x240x240`, or `96` for a cube. Extents are 1 to 32767, the largest that NIfTI-1 can hold. Throws
/// BadRequest naming `text` and the accepted forms.
Shape3 parse_shape(std::string_view text);

/// Throws BadRequest when an extent is not a positive multiple of `multiple` (≥ 1), naming `who`, the extent and the
/// nearest allowed shape.
void check_multiple(std::string_view who, const Shape3& shape, int64_t multiple);

/// Rounds each extent up to a multiple of `multiple`.
Shape3 round_up_shape(const Shape3& shape, int64_t multiple);

}  // namespace spillway
