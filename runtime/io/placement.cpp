#include "runtime/io/placement.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/error.h"

namespace spillway::runtime {
namespace {

using Vector = std::array<double, 3>;

/// A map of voxel indices (i, j, k) to indices or millimeters: linear · (i, j, k) + offset.
struct Map {
  std::array<Vector, 3> linear{};  ///< rows
  Vector offset{};

  Vector operator()(const Vector& at) const {
    Vector out = offset;
    for (size_t r = 0; r < 3; ++r)
      for (size_t c = 0; c < 3; ++c) out[r] += linear[r][c] * at[c];
    return out;
  }
};

Map map_of(const Placement& placement) {
  Map map;
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 3; ++c) map.linear[r][c] = placement.rows[r][c];
    map.offset[r] = placement.rows[r][3];
  }
  return map;
}

/// Returns `one` followed by `other`.
Map then(const Map& one, const Map& other) {
  Map both;
  both.offset = other(one.offset);
  for (size_t r = 0; r < 3; ++r)
    for (size_t c = 0; c < 3; ++c)
      for (size_t k = 0; k < 3; ++k) both.linear[r][c] += other.linear[r][k] * one.linear[k][c];
  return both;
}

/// Returns the inverse by Cramer's rule. Some of it is not finite where there is none.
Map inverse(const Map& map) {
  const auto& m = map.linear;
  Map back;
  double determinant = 0;
  for (size_t c = 0; c < 3; ++c) {
    const size_t c1 = (c + 1) % 3, c2 = (c + 2) % 3;
    for (size_t r = 0; r < 3; ++r) {
      const size_t r1 = (r + 1) % 3, r2 = (r + 2) % 3;
      back.linear[c][r] = m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1];
    }
    determinant += m[0][c] * back.linear[c][0];
  }
  for (Vector& row : back.linear)
    for (double& value : row) value /= determinant;
  for (size_t r = 0; r < 3; ++r)
    for (size_t c = 0; c < 3; ++c) back.offset[r] -= back.linear[r][c] * map.offset[c];
  return back;
}

double length(const Map& map, size_t column) {
  return std::hypot(map.linear[0][column], map.linear[1][column], map.linear[2][column]);
}

/// Returns the larger number, and infinity where one is not a number.
double larger(double one, double other) {
  return std::isnan(other) ? std::numeric_limits<double>::infinity() : std::max(one, other);
}

/// Returns the axis of W, H, D (0, 1, 2) that counts dimension `d` of D, H, W, and the other way around.
constexpr size_t mirror(size_t d) {
  return 2 - d;
}

/// Returns how the indices of a turned volume become indices of the stored one.
Map unturned(const Shape3& stored, const Turn& turn) {
  Map map;
  for (size_t d = 0; d < 3; ++d) {
    const auto from = static_cast<size_t>(turn.from[d]);
    map.linear[mirror(from)][mirror(d)] = turn.flipped[d] ? -1 : 1;
    if (turn.flipped[d]) map.offset[mirror(from)] = static_cast<double>(stored[from] - 1);
  }
  return map;
}

}  // namespace

bool is_invertible(const Placement& placement) {
  const Map map = map_of(placement), back = inverse(map);
  const auto is_finite = [](const Map& one) {
    const auto all = [](const Vector& row) {
      return std::all_of(row.begin(), row.end(), [](double v) { return std::isfinite(v); });
    };
    return all(one.offset) && std::all_of(one.linear.begin(), one.linear.end(), all);
  };
  return is_finite(map) && is_finite(back);
}

Shape3 turned_shape(const Shape3& stored, const Turn& turn) {
  Shape3 shape{};
  for (size_t d = 0; d < 3; ++d) shape[d] = stored[static_cast<size_t>(turn.from[d])];
  return shape;
}

std::optional<Turn> turn_onto(const PlacedShape& frame, const PlacedShape& volume) {
  if (!volume.placement.is_told || !frame.placement.is_told) return Turn{};
  const Map own = map_of(volume.placement), onto = then(own, inverse(map_of(frame.placement)));
  Turn turn;
  std::array<bool, 3> taken{};
  for (size_t d = 0; d < 3; ++d) {
    Vector row =
        onto.linear[mirror(d)];  // how far a millimeter along each stored axis goes along this one of the frame
    for (size_t c = 0; c < 3; ++c) row[c] /= length(own, c);
    size_t most = 0;
    for (size_t c = 1; c < 3; ++c)
      if (std::abs(row[c]) > std::abs(row[most])) most = c;
    if (!std::isfinite(row[most]) || taken[most]) return {};
    taken[most] = true;
    turn.from[d] = static_cast<int64_t>(mirror(most));
    turn.flipped[d] = row[most] < 0;
  }
  return turn;
}

double offset_voxels(const PlacedShape& frame, const PlacedShape& volume, const Turn& turn) {
  const Map own = map_of(volume.placement), place = map_of(frame.placement);
  double most = 0;
  if (!volume.placement.is_told || !frame.placement.is_told) {
    for (size_t c = 0; c < 3; ++c)
      most = larger(most,
                    static_cast<double>(frame.shape[mirror(c)] - 1) * std::abs(length(own, c) / length(place, c) - 1));
    return most;
  }
  // The distance is convex in the indices, so a corner has the largest.
  const Map onto = then(then(unturned(volume.shape, turn), own), inverse(place));
  for (unsigned corner = 0; corner < 8; ++corner) {
    Vector at{};
    for (size_t c = 0; c < 3; ++c)
      at[c] = (corner >> c & 1U) != 0 ? static_cast<double>(frame.shape[mirror(c)] - 1) : 0.0;
    const Vector there = onto(at);
    most = larger(most, std::hypot(there[0] - at[0], there[1] - at[1], there[2] - at[2]));
  }
  return most;
}

std::string describe(const Placement& placement) {
  const Map map = map_of(placement);
  const std::string spacing = str("voxels of ", length(map, 0), "x", length(map, 1), "x", length(map, 2), " mm");
  if (!placement.is_told) return str(spacing, " in no told place");
  std::string axes;
  for (size_t c = 0; c < 3; ++c) {
    size_t most = 0;
    for (size_t r = 1; r < 3; ++r)
      if (std::abs(map.linear[r][c]) > std::abs(map.linear[most][c])) most = r;
    axes += str(" ", map.linear[most][c] < 0 ? "LPI"[most] : "RAS"[most]);
  }
  return str(spacing, ", axes", axes, ", the first at (", map.offset[0], ", ", map.offset[1], ", ", map.offset[2],
             ") mm");
}

}  // namespace spillway::runtime
