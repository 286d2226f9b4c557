/// Volumes on disk: single-file NIfTI-1, plain (.nii) or compressed (.nii.gz).
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <string>

#include "runtime/io/nifti_file.h"

namespace spillway::runtime {

/// A volume in memory.
struct Volume {
  at::Tensor voxels;                   ///< [D, H, W] float32 on the CPU, scl_slope and scl_inter applied
  std::array<double, 3> spacing_mm{};  ///< distance between voxel centers along D, H, W
  std::string datatype;                ///< type as stored in the file
  Placement placement;                 ///< the place of the voxels in space, as NiftiHeader tells it
};

/// Reads a whole volume in either byte order. Throws as read_nifti_into() does.
Volume read_nifti(const std::filesystem::path& path);

/// Writes `voxels` [D, H, W] (any strides and dtype, CPU) as `dtype`: uint8, int8, int16, int32, float32 or float64.
/// Integers are rounded to nearest. `path` ends in .nii or .nii.gz, which says whether it is compressed. The same input
/// gives the same bytes. The file takes the place of a former one when it is whole, and is never written through a
/// link. Throws BadRequest for a bad argument, a value outside `dtype`, or a path that cannot be opened. Throws
/// std::system_error naming the path when writing fails (a full disk); a former file is then intact.
void write_nifti(const std::filesystem::path& path, const at::Tensor& voxels, const std::array<double, 3>& spacing_mm,
                 at::ScalarType dtype);

}  // namespace spillway::runtime
