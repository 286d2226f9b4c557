#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/io/nifti_file.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
using namespace runtime;
using namespace swap;
namespace {

// The most voxels that are read. A few bytes can unpack to millions of voxels, which all go through the same loop. The
// limit leaves that time for other inputs.
constexpr int64_t kMaxVoxels = 1 << 14;

void put(std::string& bytes, uint32_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
}

/// Returns the bytes in gzip's format without compression, because the content then mutates as easily as a plain file.
std::string in_gzip(std::string_view bytes) {
  bytes = bytes.substr(0, 65535);  // the most that one block holds
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string file("\x1f\x8b\x08\0\0\0\0\0\0\xff\1", 11);
  put(file, size, 2);
  put(file, ~size, 2);
  file += bytes;
  put(file, static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), size)), 4);
  put(file, size, 4);
  return file;
}

std::filesystem::path file_of(std::string_view input) {
  const unsigned kind = take_byte(input) % 3;
  if (kind == 0) return scratch_file("v.nii", input);
  if (kind == 1) return scratch_file("v.nii.gz", input);
  return scratch_file("v.nii.gz", in_gzip(input));
}

}  // namespace

void nifti(std::string_view input) {
  const auto path = file_of(input);
  NiftiHeader alone;
  const bool has_header = taken([&] { alone = read_nifti_header(path); });
  std::unique_ptr<float[]> voxels;
  int64_t count = 0;
  if (!taken([&] {
        (void)read_nifti_into(path, [&](const NiftiHeader& header) {
          require(has_header && header.shape == alone.shape, "the header alone says what the volume's does");
          for (const double mm : header.spacing_mm) require(std::isfinite(mm) && mm >= 0, "spacings are lengths");
          const PlacedShape volume{header.shape, header.placement};
          require(!header.placement.is_told || is_invertible(header.placement), "a place can be told from another");
          if (const auto turn = turn_onto(volume, volume))  // none where numbers are too unlike for float64
            require(voxel_count(turned_shape(volume.shape, *turn)) == voxel_count(volume.shape), "a turn keeps voxels");
          require(!describe(header.placement).empty() && offset_voxels(volume, volume, {}) >= 0, "a place has words");
          for (const int64_t extent : header.shape) require(extent >= 1 && extent <= 32767, "extents are NIfTI-1's");
          count = voxel_count(header.shape);
          require(count <= static_cast<int64_t>(input.size() + 4096) * 1032, "a volume fits its file");
          if (count > kMaxVoxels) throw BadRequest("larger than is read here");
          voxels.reset(new float[static_cast<size_t>(count)]);
          return voxels.get();
        });
      }))
    return;
  require(std::all_of(voxels.get(), voxels.get() + count, [](float v) { return std::isfinite(v); }),
          "voxels are numbers");
}

}  // namespace spillway::fuzz
