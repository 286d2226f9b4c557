/// Volumes in files, without LibTorch: single-file NIfTI-1, plain (.nii) or compressed (.nii.gz).
#pragma once
#include <array>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/io/placement.h"
#include "runtime/io/shape3.h"

namespace spillway::runtime {

/// The header of a NIfTI file.
struct NiftiHeader {
  Shape3 shape{};                      ///< D, H, W: NIfTI's nz, ny, nx
  std::array<double, 3> spacing_mm{};  ///< distance between voxel centers along D, H, W
  std::string datatype;                ///< type as stored: `INT16`, `FLOAT32`, …
  /// The place in space: that of the sform where its code is above 0, else of the qform where its code is, else none
  /// but the spacings. An sform that cannot be inverted is left out.
  Placement placement;
};

/// Reads only the 348 bytes of the header and checks everything that they tell. The volume must be NIfTI-1 in one file
/// and 3-D (further dimensions of extent 1 are fine). Its datatype must be integer or floating, up to 64 bits. It must
/// not be larger than the file can hold. Throws BadRequest naming the file and the error.
NiftiHeader read_nifti_header(const std::filesystem::path& path);

/// Reads all voxels in the order [D, H, W] with scl_slope and scl_inter applied. `room` gets the header and returns
/// memory for as many values as the header says. Values that float32 cannot hold exactly are rounded.
/// Cost: one pass over the file, and 1 MiB besides the result.
/// Throws BadRequest naming the file and the error. The errors are those of read_nifti_header(), a file that ends early
/// or whose checksum differs, and voxels that are NaN or infinite (how many, and the first).
NiftiHeader read_nifti_into(const std::filesystem::path& path, const std::function<float*(const NiftiHeader&)>& room);

/// Returns the value of voxel `index` in digits, as the file has it: `1.5`. A value that scl_slope and scl_inter change
/// is told with both: `3.5 (7 in the file, times scl_slope 0.5)`. Cost: a pass over the file up to the voxel. Throws
/// BadRequest as read_nifti_into() does.
std::string read_stored_value(const std::filesystem::path& path, int64_t index);

}  // namespace spillway::runtime
