/// Volumes on disk: single-file NIfTI-1, plain (.nii) or compressed (.nii.gz).
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <string>

#include "runtime/shape3.h"

namespace spillway {

/// What a NIfTI file says about itself.
struct NiftiHeader {
  Shape3 shape{};                      ///< D, H, W: NIfTI's nz, ny, nx
  std::array<double, 3> spacing_mm{};  ///< between voxel centres along D, H, W
  std::string datatype;                ///< as stored: `INT16`, `FLOAT32`, …
};

/// A volume in memory.
struct Volume {
  at::Tensor voxels;                   ///< [D, H, W] float32 on the CPU, scl_slope and scl_inter applied
  std::array<double, 3> spacing_mm{};  ///< between voxel centres along D, H, W
  std::string datatype;                ///< as stored in the file
};

/// Reads the 348 bytes of header only. Checks everything that they tell: it is NIfTI-1 in one file, 3-D (further
/// dimensions of extent 1 are fine), of an integer or floating datatype up to 64 bits, and not larger than the file
/// can hold. Throws BadRequest naming the file and what is wrong.
NiftiHeader read_nifti_header(const std::filesystem::path& path);

/// Reads a whole volume, either byte order. Values that float32 cannot hold exactly are rounded.
/// Cost: one pass over the file, and its decompressed bytes in memory beside the result.
/// Throws BadRequest naming the file and what is wrong: all of the above, a file that ends early or whose checksum
/// differs, voxels that are NaN or infinite (and how many).
Volume read_nifti(const std::filesystem::path& path);

/// Writes `voxels` [D, H, W] (any strides and dtype, CPU) as `dtype`: uint8, int8, int16, int32, float32 or float64;
/// integers are rounded to nearest. `path` ends in .nii or .nii.gz, which says whether it is compressed. The same input
/// gives the same bytes. Throws BadRequest for a bad argument, a value outside `dtype`, or a path that cannot be
/// opened; std::system_error naming the path when writing fails (a full disk), after removing the incomplete file.
void write_nifti(const std::filesystem::path& path, const at::Tensor& voxels, const std::array<double, 3>& spacing_mm,
                 at::ScalarType dtype);

}  // namespace spillway
