/// Positions of volumes in space, without LibTorch, and how one volume's voxels lie on another's.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/io/shape3.h"

namespace spillway::runtime {

/// The position of a volume's voxels in space. Voxel (i, j, k), which counts along W, H and D, has its center at
/// `rows` · (i, j, k, 1): millimeters to the right, to the front and up.
struct Placement {
  std::array<std::array<double, 4>, 3> rows{};
  /// False when the file tells spacings alone. `rows` is then the diagonal of the spacings.
  bool is_told = false;
};

/// Returns true when each place in space has its voxel: all numbers are finite, and so is the inverse.
bool is_invertible(const Placement& placement);

/// A volume in space: extents D, H, W, and the place.
struct PlacedShape {
  Shape3 shape{};
  Placement placement;
};

/// A change of the order in which voxels are stored. Along dimension d, the turned volume counts along dimension
/// `from[d]` of the stored volume, backward where `flipped[d]`. Dimensions are D, H, W.
struct Turn {
  std::array<int64_t, 3> from{0, 1, 2};
  std::array<bool, 3> flipped{};
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// Returns the extents of a turned volume.
Shape3 turned_shape(const Shape3& stored, const Turn& turn);

/// The most by which voxels may miss each other, in voxels. Rounded numbers in headers stay far below it: a rotation
/// as a quaternion of float32 misses by hundredths at the corners.
inline constexpr double kMaxOffsetVoxels = 0.1;

/// Returns the turn that brings `volume` closest to the axes of `frame`; none where its axes are no permutation of the
/// frame's, within 45 degrees. A volume whose place is not told is taken as it is stored.
std::optional<Turn> turn_onto(const PlacedShape& frame, const PlacedShape& volume);

/// Returns the distance, in voxels of `frame`, by which a voxel of the turned volume misses the frame's voxel of the
/// same indices, at most. Both have equal extents by then. For a volume whose place is not told only the extents in
/// millimeters are compared.
double offset_voxels(const PlacedShape& frame, const PlacedShape& volume, const Turn& turn);

/// Describes a place: `voxels of 1x1x2 mm, axes L P S, the first at (15, 20, -7) mm`. Numbers are those of W, H, D.
std::string describe(const Placement& placement);

}  // namespace spillway::runtime
