#include "runtime/io/tensor_file.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"
#include "runtime/io/sha256.h"
#include "swap/session.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

constexpr int64_t kAlignment = 8;

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
  return tensor_bytes(static_cast<int64_t>(c10::elementSize(entry.type)), entry.sizes);
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
  std::string text = json_text(header);
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

std::vector<TensorEntry> with_digests(std::vector<TensorEntry> entries) {
  entries.push_back({kDigests, at::kByte, {std::ssize(entries) + 1, kDigestBytes}});
  return entries;
}

Sha256::Digest digest_of(const void* bytes, size_t count) {
  Sha256 sha;
  sha.add(bytes, count);
  return sha.finish();
}

}  // namespace

TensorFileWriter::TensorFileWriter(Path path, std::vector<TensorEntry> entries,
                                   const std::map<std::string, std::string>& metadata)
    : entries_(with_digests(std::move(entries))), file_(std::move(path)) {
  const std::string header = header_of(entries_, metadata);
  const uint64_t length = header.size();
  file_.write(&length, sizeof length);  // little-endian, like this machine
  file_.write(header.data(), header.size());
  const auto digest = digest_of(header.data(), header.size());
  digests_.assign(digest.begin(), digest.end());
}

void TensorFileWriter::write(const at::Tensor& tensor) {
  TORCH_CHECK(next_ + 1 < entries_.size(), "[tensor_file] all ", entries_.size() - 1, " tensors were written");
  const TensorEntry& entry = entries_[next_];
  TORCH_CHECK(tensor.scalar_type() == entry.type && tensor.sizes() == at::IntArrayRef(entry.sizes), "[tensor_file] '",
              entry.name, "' is ", tensor.scalar_type(), " ", tensor.sizes(), ", not ", entry.type, " ",
              at::IntArrayRef(entry.sizes));
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  auto lent = resident_read(dense);
  file_.write(dense.const_data_ptr(), dense.nbytes());
  ++next_;
  const auto digest = digest_of(dense.const_data_ptr(), dense.nbytes());
  digests_.insert(digests_.end(), digest.begin(), digest.end());
}

void TensorFileWriter::commit() {
  TORCH_CHECK(next_ + 1 == entries_.size(), "[tensor_file] ", next_, " of ", entries_.size() - 1,
              " tensors were written");
  file_.write(digests_.data(), digests_.size());
  file_.commit();
}

std::vector<int64_t> TensorFileReader::sizes(const std::string& name) const {
  const TensorPlace* place = contents_.find(name);
  return place ? place->sizes : std::vector<int64_t>{};
}

void TensorFileReader::read(const std::string& name, const at::Tensor& tensor) const {
  const TensorPlace* place = contents_.find(name);
  if (!place) contents_.refuse(str("has no '", name, "'"));
  if (place->type != name_of(tensor.scalar_type()) || at::IntArrayRef(place->sizes) != tensor.sizes())
    contents_.refuse(spillway::str("has '", name, "' as ", place->type, " ", at::IntArrayRef(place->sizes), ", not ",
                                   name_of(tensor.scalar_type()), " ", tensor.sizes()));
  at::NoGradGuard no_grad;
  const bool direct = tensor.is_contiguous() && tensor.is_cpu();
  const at::Tensor dense =
      direct ? tensor.detach() : at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  {
    auto lent = resident(dense);
    contents_.read(name, *place, dense.mutable_data_ptr());
  }
  if (!direct) tensor.detach().copy_(dense);
}

}  // namespace spillway::runtime
