#include "runtime/io/nifti_file.h"

#include <nifti1_io.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/error.h"
#include "runtime/io/unpacked_file.h"

// nifticlib interprets the header. The bytes are read here, because nifticlib returns zeros for a file that ends early.
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

struct FreeImage {
  void operator()(nifti_image* image) const { nifti_image_free(image); }
};
using Image = std::unique_ptr<nifti_image, FreeImage>;

bool is_nifti_name(const Path& path) {
  const auto name = path.filename().string();
  return name.ends_with(".nii") || name.ends_with(".nii.gz");
}

UnpackedFile open_for_reading(const Path& path) {
  if (!is_nifti_name(path)) refuse(path, "the name must end in .nii or .nii.gz");
  return UnpackedFile(path);
}

/// Reads to the end of the stream, where length and checksum are compared.
void check_stream_end(UnpackedFile& file, const Path& path) {
  std::array<char, 1 << 14> rest;
  while (file.read(rest.data(), rest.size()) == std::ssize(rest)) {
  }
  if (file.cut_short()) refuse(path, "it is truncated: the compressed stream has no end");
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
Image parse_header(UnpackedFile& file, const Path& path) {
  nifti_1_header raw{};
  const int64_t got = file.read(reinterpret_cast<char*>(&raw), kHeaderBytes);
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

void check_claimed_size(const UnpackedFile& file, const nifti_image& image, const Path& path) {
  const int64_t claimed = image.iname_offset + static_cast<int64_t>(image.nvox) * image.nbyper;  // below 2^49
  const int64_t ratio = file.compressed() ? kMaxDeflateRatio : 1;
  const int64_t most = std::min(file.bytes_on_disk(), std::numeric_limits<int64_t>::max() / ratio) * ratio;
  if (image.iname_offset < kDataOffsetBytes)
    refuse(path, str("its header puts the voxels at byte ", image.iname_offset, "; they start at ", kDataOffsetBytes,
                     " or later"));
  if (claimed > most)
    refuse(path, str("it is truncated: its header speaks of ", claimed, " bytes, the file has ", file.bytes_on_disk(),
                     file.compressed() ? " (compressed)" : ""));
}

Shape3 shape_of(const nifti_image& image) {
  return {image.nz, image.ny, image.nx};
}

double millimeters_of_unit(const nifti_image& image) {
  if (image.xyz_units == NIFTI_UNITS_METER) return 1000;
  if (image.xyz_units == NIFTI_UNITS_MICRON) return 1e-3;
  return 1;
}

std::array<double, 3> spacing_of(const nifti_image& image) {
  const double mm = millimeters_of_unit(image);
  return {std::abs(image.dz) * mm, std::abs(image.dy) * mm, std::abs(image.dx) * mm};
}

Placement placement_of(const mat44& to_space, double mm) {
  Placement placement{.is_told = true};
  for (size_t r = 0; r < 3; ++r)
    for (size_t c = 0; c < 4; ++c) placement.rows[r][c] = to_space.m[r][c] * mm;
  return placement;
}

/// Returns the place by NIfTI-1's methods 3 (sform), 2 (qform) and 1 (spacings), the first that is there.
Placement placement_of(const nifti_image& image) {
  const double mm = millimeters_of_unit(image);
  if (image.sform_code > 0)
    if (const Placement placement = placement_of(image.sto_xyz, mm); is_invertible(placement)) return placement;
  if (image.qform_code > 0)
    if (const Placement placement = placement_of(image.qto_xyz, mm); is_invertible(placement)) return placement;
  Placement placement;
  const std::array<double, 3> spacing_mm = spacing_of(image);
  for (size_t c = 0; c < 3; ++c) placement.rows[c][c] = spacing_mm[2 - c];
  return placement;
}

struct Scaling {
  double slope = 1;
  double intercept = 0;
  bool changes() const { return slope != 1 || intercept != 0; }
};

/// Returns the scaling of the values. In NIfTI-1, a slope of 0 means that the values are stored as they are.
Scaling scaling_of(const nifti_image& image) {
  const double slope = image.scl_slope, intercept = image.scl_inter;
  if (slope == 0 || !std::isfinite(slope) || !std::isfinite(intercept)) return {};
  return {slope, intercept};
}

/// Calls `body` with a value of the C++ type that a datatype names. The datatype has been checked.
template <class Body>
auto as_type(int datatype, const Body& body) {
  switch (datatype) {
    case DT_UINT8:
      return body(uint8_t{});
    case DT_INT8:
      return body(int8_t{});
    case DT_INT16:
      return body(int16_t{});
    case DT_UINT16:
      return body(uint16_t{});
    case DT_INT32:
      return body(int32_t{});
    case DT_UINT32:
      return body(uint32_t{});
    case DT_INT64:
      return body(int64_t{});
    case DT_UINT64:
      return body(uint64_t{});
    case DT_FLOAT32:
      return body(float{});
    default:
      return body(double{});
  }
}

/// Converts `count` values, and returns how many are NaN or infinite.
template <class T>
int64_t convert(const char* bytes, int64_t count, Scaling scaling, float* out) {
  int64_t bad = 0;
  const bool scaled = scaling.changes();
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = scaled ? static_cast<float>(scaling.slope * static_cast<double>(value) + scaling.intercept)
                    : static_cast<float>(value);
    bad += !std::isfinite(out[i]);
  }
  return bad;
}

/// Returns the shortest digits that tell the value from its neighbors.
template <class T>
std::string digits(T value) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string describe_value(int datatype, const char* bytes, Scaling scaling) {
  return as_type(datatype, [&]<class T>(T value) {
    std::memcpy(&value, bytes, sizeof value);
    if (!scaling.changes()) return digits(value);
    const double scaled = scaling.slope * static_cast<double>(value) + scaling.intercept;
    return str(digits(scaled), " (", digits(value), " in the file, times scl_slope ", scaling.slope,
               scaling.intercept != 0 ? str(" plus scl_inter ", scaling.intercept) : "", ")");
  });
}

NiftiHeader header_of(const nifti_image& image) {
  return {shape_of(image), spacing_of(image), nifti_datatype_string(image.datatype), placement_of(image)};
}

bool is_swapped(const nifti_image& image) {
  return image.swapsize > 1 && image.byteorder != nifti_short_order();
}

/// The voxels that cannot be used.
struct BadVoxels {
  int64_t count = 0;
  std::string first;
};

/// Reads and converts all voxels, a chunk at a time. A file that promises more than it holds thus takes no memory for
/// the rest. Returns the voxels that are NaN or infinite.
BadVoxels read_voxels(UnpackedFile& file, const nifti_image& image, const Path& path, float* out) {
  const int64_t voxels = image.nvox;
  const int64_t each = image.nbyper, in_chunk = kChunkBytes / each;
  const Scaling scaling = scaling_of(image);
  std::vector<char> bytes(std::min(in_chunk, voxels) * each);
  const bool there = file.skip_to(image.iname_offset);
  BadVoxels bad;
  for (int64_t done = 0; done < voxels; done += in_chunk) {
    const int64_t count = std::min(in_chunk, voxels - done);
    const int64_t got = there ? file.read(bytes.data(), count * each) : 0;
    if (got < count * each)
      refuse(path, str("it is truncated: ", done * each + got, " of ", voxels * each, " bytes of voxels are there"));
    if (is_swapped(image)) nifti_swap_Nbytes(count, image.swapsize, bytes.data());
    float* const begin = out + done;
    const int64_t bad_here =
        as_type(image.datatype, [&]<class T>(T) { return convert<T>(bytes.data(), count, scaling, begin); });
    if (bad.count == 0 && bad_here > 0) {
      const auto first = std::find_if(begin, begin + count, [](float v) { return !std::isfinite(v); }) - begin;
      bad.first = describe_value(image.datatype, bytes.data() + first * each, scaling);
    }
    bad.count += bad_here;
  }
  check_stream_end(file, path);
  return bad;
}

}  // namespace

NiftiHeader read_nifti_header(const Path& path) {
  UnpackedFile file = open_for_reading(path);
  const Image image = parse_header(file, path);
  check_claimed_size(file, *image, path);
  return header_of(*image);
}

NiftiHeader read_nifti_into(const Path& path, const std::function<float*(const NiftiHeader&)>& room) {
  UnpackedFile file = open_for_reading(path);
  const Image image = parse_header(file, path);
  check_claimed_size(file, *image, path);
  NiftiHeader header = header_of(*image);
  const BadVoxels bad = read_voxels(file, *image, path, room(header));
  if (bad.count > 0)
    refuse(path,
           str(bad.count, " of ", image->nvox, " voxels are NaN or infinite as float32; the first is ", bad.first));
  return header;
}

std::string read_stored_value(const Path& path, int64_t index) {
  UnpackedFile file = open_for_reading(path);
  const Image image = parse_header(file, path);
  check_claimed_size(file, *image, path);
  std::array<char, 8> bytes{};  // the widest datatype
  if (!file.skip_to(image->iname_offset + index * image->nbyper) ||
      file.read(bytes.data(), image->nbyper) < image->nbyper)
    refuse(path, str("it is truncated: voxel ", index, " is not there"));
  if (is_swapped(*image)) nifti_swap_Nbytes(1, image->swapsize, bytes.data());
  return describe_value(image->datatype, bytes.data(), scaling_of(*image));
}

}  // namespace spillway::runtime
