/// Tensors in a file, one after the other: the safetensors format, with a SHA-256 of the header and of every tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/new_file.h"
#include "runtime/io/tensor_header.h"

namespace spillway {

/// What the header says of a tensor before its bytes come.
struct TensorEntry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
};

/// Writes a NewFile. All throw std::system_error naming the file when it cannot be written (a full disk); the former
/// file is then intact.
class TensorFileWriter {
 public:
  /// Writes the header: `entries` in the order in which their tensors will come, and free text in `metadata`.
  TensorFileWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                   const std::map<std::string, std::string>& metadata);

  /// The next entry's tensor, of its type and sizes; any strides, written in the order of its indices. It is paged in
  /// alone. Throws c10::Error for another type or other sizes.
  void write(const at::Tensor& tensor);
  /// Every entry was written: forces the bytes to the disk and takes the former file's place. Without it the former
  /// file stays.
  void commit();

 private:
  std::vector<TensorEntry> entries_;
  size_t next_ = 0;
  std::vector<uint8_t> digests_;
  NewFile file_;
};

/// Reads what a TensorFileWriter wrote, tensor by tensor.
class TensorFileReader {
 public:
  /// Reads the header. Throws as TensorContents does.
  explicit TensorFileReader(std::filesystem::path path) : contents_(std::move(path)) {}

  const std::map<std::string, std::string>& metadata() const { return contents_.metadata(); }
  bool has(const std::string& name) const { return contents_.find(name) != nullptr; }
  /// The sizes of the tensor of this name; none where there is no such tensor.
  std::vector<int64_t> sizes(const std::string& name) const;
  /// Overwrites `tensor`, which is paged in alone. Throws BadRequest naming file and tensor when there is none of this
  /// name, type and sizes, or when its bytes are damaged.
  void read(const std::string& name, const at::Tensor& tensor) const;

 private:
  TensorContents contents_;
};

}  // namespace spillway
