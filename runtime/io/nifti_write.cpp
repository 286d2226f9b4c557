#include <ATen/ATen.h>
#include <nifti1_io.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/new_file.h"
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

/// Packs bytes in gzip's format, without a name or a date, so that the same bytes give the same file.
class Packer {
 public:
  Packer() {
    if (::deflateInit2(&zlib_, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  ~Packer() { ::deflateEnd(&zlib_); }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  /// Packs `count` bytes, at most kChunkBytes, and hands on what is ready. With Z_FINISH all of it is.
  void pack(const char* bytes, int64_t count, int flush, NewFile& out) {
    zlib_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes));
    zlib_.avail_in = count;
    do {
      zlib_.next_out = reinterpret_cast<Bytef*>(room_.data());
      zlib_.avail_out = room_.size();
      ::deflate(&zlib_, flush);
      out.write(room_.data(), room_.size() - zlib_.avail_out);
    } while (zlib_.avail_out == 0);
  }

 private:
  static constexpr int kLevel = 6, kGzipWindow = 15 + 16, kMemoryLevel = 8;  // gzip's

  z_stream zlib_{};
  std::vector<char> room_ = std::vector<char>(kChunkBytes);
};

/// The file that is written, which takes its place when it is whole.
class Output {
 public:
  explicit Output(const Path& path) try : file_(path, Readers::everyone) {
    if (path.string().ends_with(".gz")) packer_.emplace();
  } catch (const std::system_error& error) {
    refuse(path, error.code().message());
  }

  void write(const void* bytes, int64_t count) {
    const auto* from = static_cast<const char*>(bytes);
    for (int64_t done = 0; done < count; done += kChunkBytes) put(from + done, std::min(kChunkBytes, count - done));
  }
  void close() {
    if (packer_) packer_->pack(nullptr, 0, Z_FINISH, file_);
    file_.commit();
  }

 private:
  void put(const char* bytes, int64_t count) {
    if (packer_)
      packer_->pack(bytes, count, Z_NO_FLUSH, file_);
    else
      file_.write(bytes, count);
  }

  NewFile file_;
  std::optional<Packer> packer_;
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
