#include <ATen/ATen.h>
#include <nifti1_io.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "runtime/io/nifti.h"

namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;

constexpr int64_t kChunkBytes = 1 << 20;

[[noreturn]] void refuse(const Path& path, const std::string& why) {
  throw BadRequest(str("cannot write '", path.string(), "': ", why));
}

int nifti_datatype(const Path& path, at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return DT_UINT8;
    case at::kChar:
      return DT_INT8;
    case at::kShort:
      return DT_INT16;
    case at::kInt:
      return DT_INT32;
    case at::kFloat:
      return DT_FLOAT32;
    case at::kDouble:
      return DT_FLOAT64;
    default:
      refuse(path, str("dtype ", at::toString(dtype), "; allowed are Byte, Char, Short, Int, Float, Double"));
  }
}

/// Returns the voxels as `dtype`, contiguous. Refuses voxels with a value that `dtype` cannot hold.
at::Tensor convert(const Path& path, const at::Tensor& voxels, at::ScalarType dtype) {
  if (at::isFloatingType(dtype) || voxels.scalar_type() == dtype) return voxels.to(dtype).contiguous();
  auto rounded = voxels.to(at::kDouble).round();
  const int64_t bits = 8 * at::elementSize(dtype);
  const double low = dtype == at::kByte ? 0 : -std::ldexp(1.0, static_cast<int>(bits - 1));
  const double high = dtype == at::kByte ? 255 : -low - 1;
  const int64_t fitting = rounded.ge(low).logical_and(rounded.le(high)).sum().item<int64_t>();
  if (fitting < voxels.numel())
    refuse(path, str(voxels.numel() - fitting, " of ", voxels.numel(), " values do not fit ", at::toString(dtype)));
  return rounded.to(dtype).contiguous();
}

/// Makes a header with voxels at x = i·Δx, …: a plain scanner frame, so that viewers show the right proportions.
nifti_1_header make_header(const Path& path, const at::Tensor& voxels, const std::array<double, 3>& spacing_mm,
                           int datatype) {
  const int dims[8] = {
      3, static_cast<int>(voxels.size(2)), static_cast<int>(voxels.size(1)), static_cast<int>(voxels.size(0)), 1, 1, 1,
      1};
  std::unique_ptr<nifti_1_header, decltype(&std::free)> made(nifti_make_new_header(dims, datatype), &std::free);
  if (!made) refuse(path, "nifticlib made no header for it");
  nifti_1_header header = *made;
  float* rows[3] = {header.srow_x, header.srow_y, header.srow_z};
  for (size_t k = 0; k < 3; ++k) {
    header.pixdim[k + 1] = static_cast<float>(spacing_mm[2 - k]);
    rows[k][k] = header.pixdim[k + 1];
  }
  header.pixdim[0] = 1;
  header.qform_code = header.sform_code = NIFTI_XFORM_SCANNER_ANAT;
  header.xyzt_units = NIFTI_UNITS_MM;
  header.vox_offset = 352;
  header.scl_slope = 1;
  std::memcpy(header.magic, "n+1", 4);
  return header;
}

/// A file being written, which is removed again unless it was closed without an error.
class Output {
 public:
  explicit Output(const Path& path) : path_(path) {
    const bool compressed = path.string().ends_with(".gz");
    file_ = gzopen(path.c_str(), compressed ? "wb6" : "wbT");
    if (!file_) refuse(path, std::strerror(errno));
  }
  ~Output() {
    if (!file_) return;
    gzclose(file_);
    remove();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const void* bytes, int64_t count) {
    auto from = static_cast<const char*>(bytes);
    for (int64_t done = 0; done < count; done += kChunkBytes) {
      const unsigned chunk = std::min(kChunkBytes, count - done);
      if (gzwrite(file_, from + done, chunk) != static_cast<int>(chunk)) fail();
    }
  }
  void close() {
    if (gzclose(std::exchange(file_, nullptr)) != Z_OK) {
      const int code = errno;
      remove();
      throw std::system_error(code, std::generic_category(), str("cannot write '", path_.string(), "'"));
    }
  }

 private:
  [[noreturn]] void fail() const {
    throw std::system_error(errno, std::generic_category(), str("cannot write '", path_.string(), "'"));
  }
  void remove() const noexcept {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  Path path_;
  gzFile file_ = nullptr;
};

}  // namespace

void write_nifti(const Path& path, const at::Tensor& voxels, const std::array<double, 3>& spacing_mm,
                 at::ScalarType dtype) {
  const auto name = path.filename().string();
  if (!name.ends_with(".nii") && !name.ends_with(".nii.gz")) refuse(path, "the name must end in .nii or .nii.gz");
  const int datatype = nifti_datatype(path, dtype);
  if (voxels.dim() != 3 || !voxels.device().is_cpu() || voxels.numel() == 0)
    refuse(path, spillway::str("a volume is a non-empty CPU tensor [D, H, W], not ", voxels.sizes()));
  for (int64_t extent : voxels.sizes())
    if (extent > 32767) refuse(path, str("extent ", extent, " is above 32767, the most that NIfTI-1 holds"));
  for (double mm : spacing_mm)
    if (!(mm > 0 && std::isfinite(mm))) refuse(path, str("spacing ", mm, " mm is not positive"));
  const auto stored = convert(path, voxels, dtype);
  const auto header = make_header(path, stored, spacing_mm, datatype);
  const char no_extension[4] = {};
  Output out(path);
  out.write(&header, sizeof header);
  out.write(no_extension, sizeof no_extension);
  out.write(stored.const_data_ptr(), stored.numel() * stored.element_size());
  out.close();
}

}  // namespace spillway::runtime
