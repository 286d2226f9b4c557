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

namespace spillway::runtime {

/// The description of a tensor in the header, which comes before the tensor's bytes.
struct TensorEntry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
};

/// A writer of tensors to a NewFile. All functions throw std::system_error naming the file when it cannot be written (a
/// full disk); the former file is then intact.
class TensorFileWriter {
 public:
  /// Writes the header: `entries` in the order in which their tensors will come, and free text in `metadata`.
  TensorFileWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                   const std::map<std::string, std::string>& metadata);

  /// Writes the next entry's tensor, which must have the entry's type and sizes. Its strides may be any; it is written
  /// in the order of its indices. It is paged in alone. Throws c10::Error for another type or other sizes.
  void write(const at::Tensor& tensor);
  /// Ends the file after every entry was written: forces the bytes to the disk and replaces the former file. Without
  /// commit() the former file stays.
  void commit();

 private:
  std::vector<TensorEntry> entries_;
  size_t next_ = 0;
  std::vector<uint8_t> digests_;
  NewFile file_;
};

/// A reader of the files of TensorFileWriter, tensor by tensor.
class TensorFileReader {
 public:
  /// Reads the header. Throws as TensorContents does.
  explicit TensorFileReader(std::filesystem::path path) : contents_(std::move(path)) {}

  const std::map<std::string, std::string>& metadata() const { return contents_.metadata(); }
  bool has(const std::string& name) const { return contents_.find(name) != nullptr; }
  /// Returns the sizes of the tensor of this name; empty where there is no such tensor.
  std::vector<int64_t> sizes(const std::string& name) const;
  /// Overwrites `tensor`, which is paged in alone. Throws BadRequest naming file and tensor when the file has no tensor
  /// of this name, type and sizes, or when its bytes are damaged.
  void read(const std::string& name, const at::Tensor& tensor) const;

 private:
  TensorContents contents_;
};

}  // namespace spillway::runtime
