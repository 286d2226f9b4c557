/// Preprocessing of the voxels of one case into a batch of one.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/io/shape3.h"
#include "runtime/models/batch.h"

namespace spillway::runtime {

/// The four scans of a BraTS case, in the order of the input's channels.
inline constexpr std::array<std::string_view, 4> kModalities = {"flair", "t1", "t1ce", "t2"};
/// The three overlapping labels, in the order of the target's channels.
inline constexpr std::array<std::string_view, 3> kTumourLabels = {"whole tumour", "tumour core", "enhancing tumour"};
/// The number that every extent must be a multiple of, because levels 1 to 5 of the U-Net halve four times.
inline constexpr int64_t kShapeMultiple = 16;

/// Returns z = (x − μ) / σ over the nonzero voxels (the brain); the background stays 0. Shape: any, float, kept. σ² is
/// the population variance; μ and σ are computed in float64.
/// Throws BadRequest naming `who` when fewer than two voxels are nonzero, when all of those are equal, or when some are
/// so large that float32 rounds most others away.
at::Tensor normalize_nonzero(const at::Tensor& voxels, std::string_view who);

/// The most by which a label may differ from a whole number. Scaling and other types' rounding stay far below it.
inline constexpr double kLabelRounding = 1e-4;

/// Returns the index, in row-major order, of the first of `labels` that is none of 0, 1, 2 and 4 up to kLabelRounding.
std::optional<int64_t> first_unknown_label(const at::Tensor& labels);

/// Maps BraTS labels [D, H, W] (0, 1 core, 2 edema, 4 enhancing) to overlapping labels [3, D, H, W] float32 of 0 and 1:
/// {1, 2, 4}, {1, 4}, {4}. Labels are rounded. Throws BadRequest naming `who` and the first other value.
at::Tensor overlapping_labels(const at::Tensor& labels, std::string_view who);

/// Crops and zero-pads the last three dimensions around the center to `shape`. Where a count is odd, the extra voxel is
/// at the end. Padding and then cropping back gives the same voxels. Shape: [..., D, H, W] → [..., shape].
at::Tensor fit_center(const at::Tensor& voxels, const Shape3& shape);

/// Normalizes each of `scans` [D, H, W] (in the order of kModalities), maps `labels` [D, H, W], and fits both to
/// `shape`. Returns input [1, 4, shape] and target [1, 3, shape], float32. `who` names the case in errors (BadRequest,
/// as from normalize_nonzero() and overlapping_labels()).
Batch assemble_case(const std::array<at::Tensor, 4>& scans, const at::Tensor& labels, const Shape3& shape,
                    std::string_view who);

}  // namespace spillway::runtime
