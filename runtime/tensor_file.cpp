#include "runtime/tensor_file.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "swap/session.h"

namespace spillway {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

/// The last tensor of every file: one row for the header, then one for each tensor before it.
constexpr const char* kDigests = "sha256";
constexpr int64_t kDigestBytes = 32;
constexpr int64_t kAlignment = 8;
constexpr int64_t kLongestHeader = int64_t{100} << 20;

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 8> kTypes{{{at::kFloat, "F32"},
                                          {at::kDouble, "F64"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kHalf, "F16"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kByte, "U8"},
                                          {at::kBool, "BOOL"}}};

const char* name_of(at::ScalarType type) {
  for (const TypeName& known : kTypes)
    if (known.type == type) return known.name;
  TORCH_CHECK(false, "[tensor_file] tensors of type ", type, " cannot be written");
}

int64_t bytes_of(const TensorEntry& entry) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.type));
  for (int64_t size : entry.sizes) bytes *= size;
  return bytes;
}

[[noreturn]] void fail(const Path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), str("cannot ", what, " '", path.string(), "'"));
}

std::string header_of(const std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata) {
  json header;
  header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorEntry& entry : entries) {
    const int64_t end = offset + bytes_of(entry);
    header[entry.name] = {{"dtype", name_of(entry.type)}, {"shape", entry.sizes}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

std::vector<TensorEntry> with_digests(std::vector<TensorEntry> entries) {
  entries.push_back({kDigests, at::kByte, {static_cast<int64_t>(entries.size()) + 1, kDigestBytes}});
  return entries;
}

Sha256::Digest digest_of(const void* bytes, size_t count) {
  Sha256 sha;
  sha.add(bytes, count);
  return sha.finish();
}

int open_new(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(path, "write");
  return descriptor;
}

int open_old(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) throw BadRequest(str("there is no '", path.string(), "'"));
  if (descriptor < 0) fail(path, "read");
  return descriptor;
}

void sync_folder(const Path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, "open");
  File file(descriptor);
  if (::fsync(descriptor) != 0) fail(folder, "write");
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

TensorFileWriter::TensorFileWriter(Path path, std::vector<TensorEntry> entries,
                                   const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)),
      part_(path_.string() + ".part"),
      entries_(with_digests(std::move(entries))),
      file_(open_new(part_)) {
  const std::string header = header_of(entries_, metadata);
  const auto length = static_cast<uint64_t>(header.size());
  put(&length, sizeof length);  // little-endian, as this machine is
  put(header.data(), header.size());
  const auto digest = digest_of(header.data(), header.size());
  digests_.assign(digest.begin(), digest.end());
}

TensorFileWriter::~TensorFileWriter() {
  std::error_code ignored;
  if (!committed_) std::filesystem::remove(part_, ignored);
}

void TensorFileWriter::put(const void* bytes, size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count > 0;) {
    const ssize_t written = ::write(file_.get(), at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(part_, "write");
    at += written;
    count -= static_cast<size_t>(written);
  }
}

void TensorFileWriter::write(const at::Tensor& tensor) {
  TORCH_CHECK(next_ + 1 < entries_.size(), "[tensor_file] all ", entries_.size() - 1, " tensors were written");
  const TensorEntry& entry = entries_[next_];
  TORCH_CHECK(tensor.scalar_type() == entry.type && tensor.sizes() == at::IntArrayRef(entry.sizes), "[tensor_file] '",
              entry.name, "' is ", tensor.scalar_type(), " ", tensor.sizes(), ", not ", entry.type, " ",
              at::IntArrayRef(entry.sizes));
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  auto lent = resident_read(dense);
  put(dense.const_data_ptr(), dense.nbytes());
  ++next_;
  const auto digest = digest_of(dense.const_data_ptr(), dense.nbytes());
  digests_.insert(digests_.end(), digest.begin(), digest.end());
}

void TensorFileWriter::commit() {
  TORCH_CHECK(next_ + 1 == entries_.size(), "[tensor_file] ", next_, " of ", entries_.size() - 1,
              " tensors were written");
  put(digests_.data(), digests_.size());
  if (::fsync(file_.get()) != 0) fail(part_, "write");
  std::filesystem::rename(part_, path_);
  committed_ = true;
  sync_folder(path_.parent_path());
}

TensorFileReader::TensorFileReader(Path path) : path_(std::move(path)), file_(open_old(path_)) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail(path_, "read");
  const auto file_bytes = static_cast<int64_t>(status.st_size);
  uint64_t length = 0;
  if (file_bytes < static_cast<int64_t>(sizeof length)) refuse(str("has only ", file_bytes, " bytes"));
  get(&length, sizeof length, 0);
  if (length > static_cast<uint64_t>(kLongestHeader)) refuse("is no safetensors file");
  data_ = static_cast<int64_t>(sizeof length + length);
  if (file_bytes < data_) refuse(str("is truncated: its header alone needs ", data_, " bytes, it has ", file_bytes));
  std::string header(length, '\0');
  get(header.data(), static_cast<int64_t>(length), sizeof length);
  parse_header(header);

  int64_t end = 0;
  for (const auto& [name, place] : places_) end = std::max(end, place.offset + place.bytes);
  if (file_bytes != data_ + end)
    refuse(str(file_bytes < data_ + end ? "is truncated" : "has bytes too many", ": it has ", file_bytes, " of ",
               data_ + end, " bytes"));
  const auto digests = places_.find(kDigests);
  if (digests == places_.end() || digests->second.bytes != static_cast<int64_t>(places_.size()) * kDigestBytes)
    refuse("has no checksums: Spillway did not write it");
  digests_.resize(static_cast<size_t>(digests->second.bytes));
  get(digests_.data(), digests->second.bytes, data_ + digests->second.offset);
  const auto digest = digest_of(header.data(), header.size());
  if (!std::equal(digest.begin(), digest.end(), digests_.begin())) refuse("has a damaged header");
}

void TensorFileReader::parse_header(const std::string& text) {
  try {
    const json header = json::parse(text);
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
        continue;
      }
      const std::string type = value.at("dtype");
      const auto known = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& t) { return t.name == type; });
      if (known == kTypes.end()) refuse("holds tensors of type " + type);
      const auto offsets = value.at("data_offsets").get<std::array<int64_t, 2>>();
      Place place{{name, known->type, value.at("shape").get<std::vector<int64_t>>()}, offsets[0], 0};
      place.bytes = bytes_of(place.entry);
      if (offsets[0] < 0 || place.bytes < 0 || offsets[1] - offsets[0] != place.bytes) refuse("has a damaged header");
      places_.emplace(name, std::move(place));
    }
  } catch (const json::exception&) {
    refuse("is no safetensors file");
  }
  std::vector<Place*> in_order;
  for (auto& [name, place] : places_) in_order.push_back(&place);
  std::sort(in_order.begin(), in_order.end(), [](const Place* a, const Place* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  for (size_t i = 0; i < in_order.size(); ++i) in_order[i]->index = i;
}

void TensorFileReader::refuse(const std::string& why) const {
  throw BadRequest(str("'", path_.string(), "' ", why));
}

void TensorFileReader::get(void* bytes, int64_t count, int64_t offset) const {
  for (char* at = static_cast<char*>(bytes); count > 0;) {
    const ssize_t taken = ::pread(file_.get(), at, static_cast<size_t>(count), offset);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail(path_, "read");
    if (taken == 0) refuse(str("ends at byte ", offset, ", ", count, " too early"));
    at += taken;
    offset += taken;
    count -= taken;
  }
}

void TensorFileReader::read(const std::string& name, const at::Tensor& tensor) const {
  const auto found = places_.find(name);
  if (found == places_.end()) refuse(str("has no '", name, "'"));
  const Place& place = found->second;
  if (place.entry.type != tensor.scalar_type() || at::IntArrayRef(place.entry.sizes) != tensor.sizes())
    refuse(spillway::str("has '", name, "' as ", name_of(place.entry.type), " ", at::IntArrayRef(place.entry.sizes),
                         ", not ", name_of(tensor.scalar_type()), " ", tensor.sizes()));
  at::NoGradGuard no_grad;
  const bool direct = tensor.is_contiguous() && tensor.is_cpu();
  const at::Tensor dense =
      direct ? tensor.detach() : at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  {
    auto lent = resident(dense);
    get(dense.mutable_data_ptr(), place.bytes, data_ + place.offset);
    const auto digest = digest_of(dense.const_data_ptr(), dense.nbytes());
    const auto* expected = digests_.data() + (place.index + 1) * kDigestBytes;
    if (!std::equal(digest.begin(), digest.end(), expected)) refuse(str("is damaged: the bytes of '", name, "'"));
  }
  if (!direct) tensor.detach().copy_(dense);
}

}  // namespace spillway
