#include "runtime/io/tensor_header.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/json_text.h"
#include "runtime/io/sha256.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

constexpr int64_t kMaxHeader = int64_t{100} << 20;
constexpr size_t kMaxDimensions = 64;  // LibTorch's limit
constexpr size_t kShown = 80;          // most bytes of a foreign name in a message

struct TypeBytes {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeBytes, 8> kTypes{
    {{"F32", 4}, {"F64", 8}, {"BF16", 2}, {"F16", 2}, {"I64", 8}, {"I32", 4}, {"U8", 1}, {"BOOL", 1}}};

[[noreturn]] void fail(const Path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), str("cannot ", what, " '", path.string(), "'"));
}

/// Opens an existing file, and neither follows a link nor waits for a pipe's other end.
int open_old(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0 && errno == ENOENT) throw BadRequest(str("there is no '", path.string(), "'"));
  if (descriptor < 0 && errno == ELOOP)
    throw BadRequest(str("'", path.string(), "' is a symbolic link; name the folder that holds the file itself"));
  if (descriptor < 0) fail(path, "read");
  return descriptor;
}

const json& member(const json& value, const char* key) {
  const auto found = value.find(key);
  if (found == value.end()) throw BadRequest(str("is no safetensors file: a tensor has no ", key));
  return *found;
}

TensorPlace parse_place(const std::string& full_name, const json& value, int64_t data_bytes) {
  const std::string name = full_name.substr(0, kShown);
  if (!value.is_object()) throw BadRequest("is no safetensors file: a tensor's description is no object");
  TensorPlace place;
  const json &type = member(value, "dtype"), &shape = member(value, "shape"), &range = member(value, "data_offsets");
  place.type = type.is_string() ? type.get<std::string>() : type.type_name();
  const int64_t element_bytes = tensor_type_bytes(place.type);
  if (element_bytes == 0) throw BadRequest("holds tensors of type " + place.type.substr(0, 16));
  if (!shape.is_array() || shape.size() > kMaxDimensions || !range.is_array() || range.size() != 2)
    throw BadRequest(str("has a damaged header: the shape or the offsets of '", name, "'"));
  for (const json& size : shape) place.sizes.push_back(whole_number(size, "has a damaged header: a size"));
  place.offset = whole_number(range[0], "has a damaged header: an offset");
  const int64_t end = whole_number(range[1], "has a damaged header: an offset");
  place.bytes = tensor_bytes(element_bytes, place.sizes);
  if (end < place.offset || end - place.offset != place.bytes)
    throw BadRequest(
        str("has a damaged header: '", name, "' has ", place.bytes, " bytes from ", place.offset, " to ", end));
  if (end > data_bytes)
    throw BadRequest(str("is truncated: '", name, "' ends at byte ", end, ", and there are ", data_bytes));
  return place;
}

/// Numbers the tensors in the order of their offsets. They must follow each other.
void put_in_order(std::map<std::string, TensorPlace>& places, int64_t data_bytes) {
  std::vector<TensorPlace*> in_order;
  for (auto& [name, place] : places) in_order.push_back(&place);
  std::sort(in_order.begin(), in_order.end(), [](const TensorPlace* a, const TensorPlace* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  int64_t end = 0;
  for (size_t i = 0; i < in_order.size(); ++i) {
    if (in_order[i]->offset != end)
      throw BadRequest(str("has a damaged header: ", in_order[i]->offset < end ? "tensors overlap" : "there is a hole",
                           " before byte ", std::max(in_order[i]->offset, end)));
    end += in_order[i]->bytes;
    in_order[i]->index = i;
  }
  if (end < data_bytes) throw BadRequest(str("has bytes too many: ", data_bytes, " of tensors that take ", end));
}

Sha256::Digest digest_of(const void* bytes, size_t count) {
  Sha256 sha;
  sha.add(bytes, count);
  return sha.finish();
}

}  // namespace

int64_t tensor_type_bytes(std::string_view type) {
  for (const TypeBytes& known : kTypes)
    if (known.name == type) return known.bytes;
  return 0;
}

int64_t tensor_bytes(int64_t element_bytes, const std::vector<int64_t>& sizes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : sizes)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      throw BadRequest(str("has a damaged header: a tensor with a size of ", size));
  return bytes;
}

TensorHeader parse_tensor_header(std::string_view text, int64_t data_bytes) {
  json parsed;
  try {
    parsed = parse_json(text);
  } catch (const BadRequest& error) {
    throw BadRequest(str("is no safetensors file: ", error.what()));
  }
  if (!parsed.is_object()) throw BadRequest("is no safetensors file");
  TensorHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name != "__metadata__") {
      header.places.emplace(name, parse_place(name, value, data_bytes));
      continue;
    }
    if (!value.is_object()) throw BadRequest("is no safetensors file: its metadata are no object");
    for (const auto& [key, word] : value.items()) {
      if (!word.is_string()) throw BadRequest("is no safetensors file: its metadata are not all text");
      header.metadata.emplace(key, word.get<std::string>());
    }
  }
  put_in_order(header.places, data_bytes);
  return header;
}

TensorContents::TensorContents(Path path) : path_(std::move(path)), file_(open_old(path_)) {
  const int64_t file_bytes = regular_file_bytes(file_, path_);
  if (file_bytes < 0) refuse("is no file");
  const std::string text = read_header_text(file_bytes);
  try {
    header_ = parse_tensor_header(text, file_bytes - data_);
  } catch (const BadRequest& error) {
    refuse(error.what());
  }
  const TensorPlace* digests = find(kDigests);
  const size_t count = header_.places.size();
  if (!digests || digests->index + 1 != count || digests->bytes != static_cast<int64_t>(count) * kDigestBytes)
    refuse("has no checksums: Spillway did not write it");
  digests_.resize(digests->bytes);
  get(digests_.data(), digests->bytes, data_ + digests->offset);
  const auto digest = digest_of(text.data(), text.size());
  if (!std::equal(digest.begin(), digest.end(), digests_.begin())) refuse("has a damaged header");
  header_.places.erase(kDigests);  // it is not a user's tensor, and it has no row of its own
}

std::string TensorContents::read_header_text(int64_t file_bytes) {
  uint64_t length = 0;
  if (file_bytes < static_cast<int64_t>(sizeof length)) refuse(str("has only ", file_bytes, " bytes"));
  get(&length, sizeof length, 0);  // little-endian, like this machine
  if (length > static_cast<uint64_t>(kMaxHeader)) refuse("is no safetensors file");
  data_ = sizeof length + length;
  if (file_bytes < data_) refuse(str("is truncated: its header alone needs ", data_, " bytes, it has ", file_bytes));
  std::string text(length, '\0');
  get(text.data(), static_cast<int64_t>(length), sizeof length);
  return text;
}

const TensorPlace* TensorContents::find(const std::string& name) const {
  const auto found = header_.places.find(name);
  return found == header_.places.end() ? nullptr : &found->second;
}

void TensorContents::read(const std::string& name, const TensorPlace& place, void* bytes) const {
  get(bytes, place.bytes, data_ + place.offset);
  const auto digest = digest_of(bytes, place.bytes);
  const auto row = digests_.begin() + (place.index + 1) * kDigestBytes;
  if (!std::equal(digest.begin(), digest.end(), row)) refuse(str("is damaged: the bytes of '", name, "'"));
}

void TensorContents::refuse(const std::string& why) const {
  throw BadRequest(str("'", path_.string(), "' ", why));
}

void TensorContents::get(void* bytes, int64_t count, int64_t offset) const {
  for (char* at = static_cast<char*>(bytes); count > 0;) {
    const ssize_t taken = ::pread(file_.get(), at, count, offset);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail(path_, "read");
    if (taken == 0) refuse(str("ends at byte ", offset, ", ", count, " too early"));
    at += taken;
    offset += taken;
    count -= taken;
  }
}

}  // namespace spillway::runtime
