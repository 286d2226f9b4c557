/// The header of a safetensors file, checked before anything is believed that it says. Without LibTorch.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/new_file.h"

namespace spillway {

/// The name of the last tensor of every file: SHA-256 of the header, then of each tensor before it, a row each.
inline constexpr const char* kDigests = "sha256";
inline constexpr int64_t kDigestBytes = 32;

/// Where a tensor is, and as what.
struct TensorPlace {
  std::string type;  ///< in the format's words: `F32`, `BF16`, …
  std::vector<int64_t> sizes;
  int64_t offset = 0, bytes = 0;  ///< behind the header
  size_t index = 0;               ///< in order of offsets
};

struct TensorHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorPlace> places;  ///< by name
};

/// Bytes of an element of `type`, 0 for a type that is not known.
int64_t tensor_type_bytes(std::string_view type);

/// Bytes of a tensor. Throws BadRequest for a negative size, or more bytes than 63 bits count.
int64_t tensor_bytes(int64_t element_bytes, const std::vector<int64_t>& sizes);

/// Reads a header that `data_bytes` bytes follow. Throws BadRequest, which says what is wrong and names no file, unless
/// the tensors lie one behind the other, without holes and overlaps, from the first of these bytes to the last.
TensorHeader parse_tensor_header(std::string_view text, int64_t data_bytes);

/// A file whose header has been read, and compared with its checksum.
class TensorContents {
 public:
  /// Throws BadRequest naming the file when it is none, a link, foreign, truncated or damaged.
  explicit TensorContents(std::filesystem::path path);

  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null when there is none of this name.
  const TensorPlace* find(const std::string& name) const;
  /// Fills `bytes`, as many as the place says. Throws BadRequest naming file and tensor when they are damaged.
  void read(const std::string& name, const TensorPlace& place, void* bytes) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  void get(void* bytes, int64_t count, int64_t offset) const;
  std::string read_header_text(int64_t file_bytes);

  std::filesystem::path path_;
  File file_;
  int64_t data_ = 0;  // where the header ends
  TensorHeader header_;
  std::vector<uint8_t> digests_;
};

}  // namespace spillway
