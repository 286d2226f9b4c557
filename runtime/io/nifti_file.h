/// Volumes in files, without LibTorch: single-file NIfTI-1, plain (.nii) or compressed (.nii.gz).
#pragma once
#include <array>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/io/shape3.h"

namespace spillway {

/// The header of a NIfTI file.
struct NiftiHeader {
  Shape3 shape{};                      ///< D, H, W: NIfTI's nz, ny, nx
  std::array<double, 3> spacing_mm{};  ///< between voxel centres along D, H, W
  std::string datatype;                ///< as stored: `INT16`, `FLOAT32`, …
};

/// Reads the 348 bytes of header only. Checks everything that they tell: it is NIfTI-1 in one file, 3-D (further
/// dimensions of extent 1 are fine), of an integer or floating datatype up to 64 bits, and not larger than the file
/// can hold. Throws BadRequest naming the file and what is wrong.
NiftiHeader read_nifti_header(const std::filesystem::path& path);

/// Reads all voxels in the order [D, H, W], scl_slope and scl_inter applied, into the room that `room` makes for as
/// many as the header says. Values that float32 cannot hold exactly are rounded.
/// Cost: one pass over the file, and 1 MiB beside the result.
/// Throws BadRequest naming the file and what is wrong: all of the above, a file that ends early or whose checksum
/// differs, voxels that are NaN or infinite (and how many).
NiftiHeader read_nifti_into(const std::filesystem::path& path, const std::function<float*(const NiftiHeader&)>& room);

}  // namespace spillway
