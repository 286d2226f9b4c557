#include "runtime/io/nifti_file.h"

#include <fcntl.h>
#include <nifti1_io.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/new_file.h"

// nifticlib interprets the header. The bytes go through zlib here, because nifticlib returns zeros for a file that ends
// early and does not say whether a write failed.
namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;

constexpr int64_t kHeaderBytes = 348;
constexpr int64_t kNifti2HeaderBytes = 540;
constexpr int64_t kDataOffsetBytes = 352;   // header and an empty extension flag
constexpr int64_t kMaxDeflateRatio = 1032;  // no deflate stream expands further
constexpr int64_t kChunkBytes = 1 << 20;

[[noreturn]] void refuse(const Path& path, const std::string& why) {
  throw BadRequest(str("cannot read '", path.string(), "': ", why));
}

struct CloseGz {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<gzFile_s, CloseGz>;

struct FreeImage {
  void operator()(nifti_image* image) const { nifti_image_free(image); }
};
using Image = std::unique_ptr<nifti_image, FreeImage>;

bool is_nifti_name(const Path& path) {
  const auto name = path.filename().string();
  return name.ends_with(".nii") || name.ends_with(".nii.gz");
}

/// The file of a volume, and its size on the disk.
struct Source {
  GzFile file;
  int64_t bytes = 0;
};

Source open_for_reading(const Path& path) {
  if (!is_nifti_name(path)) refuse(path, "the name must end in .nii or .nii.gz");
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // O_NONBLOCK does not wait for a pipe
  if (file.get() < 0) refuse(path, errno == ENOENT ? "no such file" : std::strerror(errno));
  const int64_t bytes = regular_file_bytes(file, path);
  if (bytes < 0) refuse(path, "it is not a file");
  const int descriptor = ::dup(file.get());  // zlib closes its own descriptor
  Source source{GzFile(descriptor < 0 ? nullptr : gzdopen(descriptor, "rb")), bytes};
  if (source.file) return source;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  refuse(path, std::strerror(error));
}

/// Fills as much of `bytes` as the file holds, and returns the number of bytes. Throws on damage, not on an early end.
int64_t read_some(gzFile file, const Path& path, char* bytes, int64_t count) {
  int64_t done = 0;
  while (done < count) {
    const int got = gzread(file, bytes + done, std::min(count - done, kChunkBytes));
    if (got > 0) {
      done += got;
      continue;
    }
    int code = Z_OK;
    const char* text = gzerror(file, &code);
    if (got < 0 && code != Z_BUF_ERROR) refuse(path, str("the compressed data is damaged (", text, ")"));
    break;
  }
  return done;
}

/// Reads to the end of the stream, where zlib compares length and checksum.
void check_stream_end(gzFile file, const Path& path) {
  std::array<char, 1 << 14> rest;
  while (read_some(file, path, rest.data(), rest.size()) == std::ssize(rest)) {
  }
  int code = Z_OK;
  gzerror(file, &code);
  if (code == Z_BUF_ERROR) refuse(path, "it is truncated: the compressed stream has no end");
}

std::string describe_dims(const nifti_1_header& header) {
  std::string text = str(header.dim[0], "-D");
  if (header.dim[0] < 1 || header.dim[0] > 7) return text;
  text += ", extents ";
  for (int d = 1; d <= header.dim[0]; ++d) text += str(d > 1 ? "x" : "", header.dim[d]);
  return text;
}

void check_dims(const nifti_1_header& header, const Path& path) {
  bool good = header.dim[0] >= 3 && header.dim[0] <= 7;
  for (int d = 1; good && d <= header.dim[0]; ++d) good = d <= 3 ? header.dim[d] >= 1 : header.dim[d] == 1;
  if (!good) refuse(path, str("it is not a 3-D volume (", describe_dims(header), ")"));
}

bool is_supported(int datatype) {
  switch (datatype) {
    case DT_UINT8:
    case DT_INT8:
    case DT_INT16:
    case DT_UINT16:
    case DT_INT32:
    case DT_UINT32:
    case DT_INT64:
    case DT_UINT64:
    case DT_FLOAT32:
    case DT_FLOAT64:
      return true;
    default:
      return false;
  }
}

/// Returns nifticlib's view of a header whose dimensions and datatype have been checked.
Image parse_header(gzFile file, const Path& path) {
  nifti_1_header raw{};
  const int64_t got = read_some(file, path, reinterpret_cast<char*>(&raw), kHeaderBytes);
  if (got < kHeaderBytes) refuse(path, str("it holds ", got, " bytes; a NIfTI header has ", kHeaderBytes));
  nifti_1_header header = raw;
  if (header.sizeof_hdr != kHeaderBytes && header.sizeof_hdr != kNifti2HeaderBytes) swap_nifti_header(&header, 1);
  if (header.sizeof_hdr == kNifti2HeaderBytes) refuse(path, "it is NIfTI-2; convert it to NIfTI-1");
  if (header.sizeof_hdr != kHeaderBytes) refuse(path, "it is not a NIfTI file");
  if (std::memcmp(header.magic, "ni1", 4) == 0)
    refuse(path, "it is the header of an .hdr/.img pair; one file is needed");
  if (std::memcmp(header.magic, "n+1", 4) != 0) refuse(path, "it is not a NIfTI file (no n+1 in its header)");
  check_dims(header, path);
  if (!is_supported(header.datatype))
    refuse(path, str("datatype ", nifti_datatype_string(header.datatype), " (", header.datatype,
                     ") is not supported; integers and floats of 8 to 64 bits are"));
  nifti_set_debug_level(0);
  Image image(nifti_convert_nhdr2nim(raw, path.c_str()));
  if (!image) refuse(path, "its NIfTI header is damaged");
  return image;
}

void check_claimed_size(const Source& source, const nifti_image& image, const Path& path) {
  const int64_t claimed = image.iname_offset + static_cast<int64_t>(image.nvox) * image.nbyper;  // below 2^49
  const bool plain = gzdirect(source.file.get());
  const int64_t ratio = plain ? 1 : kMaxDeflateRatio;
  const int64_t most = std::min(source.bytes, std::numeric_limits<int64_t>::max() / ratio) * ratio;
  if (image.iname_offset < kDataOffsetBytes)
    refuse(path, str("its header puts the voxels at byte ", image.iname_offset, "; they start at ", kDataOffsetBytes,
                     " or later"));
  if (claimed > most)
    refuse(path, str("it is truncated: its header speaks of ", claimed, " bytes, the file has ", source.bytes,
                     plain ? "" : " (compressed)"));
}

Shape3 shape_of(const nifti_image& image) {
  return {image.nz, image.ny, image.nx};
}

std::array<double, 3> spacing_of(const nifti_image& image) {
  double mm = 1;
  if (image.xyz_units == NIFTI_UNITS_METER) mm = 1000;
  if (image.xyz_units == NIFTI_UNITS_MICRON) mm = 1e-3;
  return {std::abs(image.dz) * mm, std::abs(image.dy) * mm, std::abs(image.dx) * mm};
}

struct Scaling {
  double slope = 1;
  double intercept = 0;
};

/// Returns the scaling of the values. In NIfTI-1, a slope of 0 means that the values are stored as they are.
Scaling scaling_of(const nifti_image& image) {
  const double slope = image.scl_slope, intercept = image.scl_inter;
  if (slope == 0 || !std::isfinite(slope) || !std::isfinite(intercept)) return {};
  return {slope, intercept};
}

/// Converts `count` values, and returns how many are NaN or infinite.
template <class T>
int64_t convert(const char* bytes, int64_t count, Scaling scaling, float* out) {
  int64_t bad = 0;
  const bool scaled = scaling.slope != 1 || scaling.intercept != 0;
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = scaled ? static_cast<float>(scaling.slope * static_cast<double>(value) + scaling.intercept)
                    : static_cast<float>(value);
    bad += !std::isfinite(out[i]);
  }
  return bad;
}

int64_t convert_as(int datatype, const char* bytes, int64_t count, Scaling scaling, float* out) {
  switch (datatype) {
    case DT_UINT8:
      return convert<uint8_t>(bytes, count, scaling, out);
    case DT_INT8:
      return convert<int8_t>(bytes, count, scaling, out);
    case DT_INT16:
      return convert<int16_t>(bytes, count, scaling, out);
    case DT_UINT16:
      return convert<uint16_t>(bytes, count, scaling, out);
    case DT_INT32:
      return convert<int32_t>(bytes, count, scaling, out);
    case DT_UINT32:
      return convert<uint32_t>(bytes, count, scaling, out);
    case DT_INT64:
      return convert<int64_t>(bytes, count, scaling, out);
    case DT_UINT64:
      return convert<uint64_t>(bytes, count, scaling, out);
    case DT_FLOAT32:
      return convert<float>(bytes, count, scaling, out);
    default:
      return convert<double>(bytes, count, scaling, out);
  }
}

NiftiHeader header_of(const nifti_image& image) {
  return {shape_of(image), spacing_of(image), nifti_datatype_string(image.datatype)};
}

/// Reads and converts all voxels, a chunk at a time. A file that promises more than it holds thus takes no memory for
/// the rest. Returns how many are NaN or infinite.
int64_t read_voxels(gzFile file, const nifti_image& image, const Path& path, float* out) {
  const int64_t voxels = image.nvox;
  const int64_t each = image.nbyper, in_chunk = kChunkBytes / each;
  const bool swapped = image.swapsize > 1 && image.byteorder != nifti_short_order();
  std::vector<char> bytes(std::min(in_chunk, voxels) * each);
  const bool there = gzseek(file, image.iname_offset, SEEK_SET) >= 0;
  int64_t bad = 0;
  for (int64_t done = 0; done < voxels; done += in_chunk) {
    const int64_t count = std::min(in_chunk, voxels - done);
    const int64_t got = there ? read_some(file, path, bytes.data(), count * each) : 0;
    if (got < count * each)
      refuse(path, str("it is truncated: ", done * each + got, " of ", voxels * each, " bytes of voxels are there"));
    if (swapped) nifti_swap_Nbytes(count, image.swapsize, bytes.data());
    bad += convert_as(image.datatype, bytes.data(), count, scaling_of(image), out + done);
  }
  check_stream_end(file, path);
  return bad;
}

}  // namespace

NiftiHeader read_nifti_header(const Path& path) {
  const Source source = open_for_reading(path);
  const Image image = parse_header(source.file.get(), path);
  check_claimed_size(source, *image, path);
  return header_of(*image);
}

NiftiHeader read_nifti_into(const Path& path, const std::function<float*(const NiftiHeader&)>& room) {
  const Source source = open_for_reading(path);
  const Image image = parse_header(source.file.get(), path);
  check_claimed_size(source, *image, path);
  NiftiHeader header = header_of(*image);
  const int64_t bad = read_voxels(source.file.get(), *image, path, room(header));
  if (bad) refuse(path, str(bad, " of ", image->nvox, " voxels are NaN or infinite"));
  return header;
}

}  // namespace spillway::runtime
