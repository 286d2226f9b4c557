/// Tensors in a file, one after the other: the safetensors format, with a SHA-256 of the header and of every tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/sha256.h"

namespace spillway {

/// What the header says of a tensor before its bytes come.
struct TensorEntry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
};

/// A file descriptor that closes itself.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File();
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Writes beside `path` and takes its place at the end, so that `path` is always whole: the former file or the new one.
/// All throw std::system_error naming the file when it cannot be written (a full disk); the former file is then intact.
class TensorFileWriter {
 public:
  /// Writes the header: `entries` in the order in which their tensors will come, and free text in `metadata`.
  TensorFileWriter(std::filesystem::path path, std::vector<TensorEntry> entries,
                   const std::map<std::string, std::string>& metadata);
  /// Without commit(): removes what was written.
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  /// The next entry's tensor, of its type and sizes; any strides, written in the order of its indices. It is paged in
  /// alone. Throws c10::Error for another type or other sizes.
  void write(const at::Tensor& tensor);
  /// Every entry was written: forces the bytes to the disk and renames.
  void commit();

 private:
  void put(const void* bytes, size_t count);

  std::filesystem::path path_, part_;
  std::vector<TensorEntry> entries_;
  size_t next_ = 0;
  std::vector<uint8_t> digests_;
  File file_;
  bool committed_ = false;
};

/// Reads what a TensorFileWriter wrote, tensor by tensor.
class TensorFileReader {
 public:
  /// Reads the header. Throws BadRequest naming the file when it is none, foreign, truncated or damaged.
  explicit TensorFileReader(std::filesystem::path path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return places_.count(name) > 0; }
  /// Overwrites `tensor`, which is paged in alone. Throws BadRequest naming file and tensor when there is none of this
  /// name, type and sizes, or when its bytes are damaged.
  void read(const std::string& name, const at::Tensor& tensor) const;

 private:
  struct Place {
    TensorEntry entry;
    int64_t offset = 0, bytes = 0;
    size_t index = 0;
  };
  [[noreturn]] void refuse(const std::string& why) const;
  void get(void* bytes, int64_t count, int64_t offset) const;
  void parse_header(const std::string& text);

  std::filesystem::path path_;
  File file_;
  int64_t data_ = 0;  // where the header ends
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Place> places_;
  std::vector<uint8_t> digests_;
};

}  // namespace spillway
