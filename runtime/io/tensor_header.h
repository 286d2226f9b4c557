/// The header of a safetensors file, whose claims are checked before they are used. LibTorch-free.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/new_file.h"

namespace spillway::runtime {

/// The name of the last tensor of every file. Its rows are the SHA-256 of the header, then of each tensor before it.
inline constexpr const char* kDigests = "sha256";
inline constexpr int64_t kDigestBytes = 32;

/// The place of a tensor in the file, its type and its sizes.
struct TensorPlace {
  std::string type;  ///< in the format's words: `F32`, `BF16`, …
  std::vector<int64_t> sizes;
  int64_t offset = 0;  ///< place of its first byte, counted from the end of the header
  int64_t bytes = 0;   ///< length of its bytes
  size_t index = 0;    ///< position in the order of offsets
};

struct TensorHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorPlace> places;  ///< by name
};

/// Returns the bytes of an element of `type`, or 0 for an unknown type.
int64_t tensor_type_bytes(std::string_view type);

/// Returns the bytes of a tensor. Throws BadRequest for a negative size, or more bytes than 63 bits count.
int64_t tensor_bytes(int64_t element_bytes, const std::vector<int64_t>& sizes);

/// Reads a header that `data_bytes` bytes follow. The tensors must lie one behind the other, without holes and
/// overlaps, from the first of these bytes to the last. Otherwise throws BadRequest, which names the error and no file.
TensorHeader parse_tensor_header(std::string_view text, int64_t data_bytes);

/// A file whose header has been read and compared with its checksum.
class TensorContents {
 public:
  /// Opens the file. Throws BadRequest naming the file when it is missing, no regular file, a link, foreign, truncated
  /// or damaged.
  explicit TensorContents(std::filesystem::path path);

  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Returns the place of the tensor of this name; null when there is none.
  const TensorPlace* find(const std::string& name) const;
  /// Fills `bytes`, as many as `place` says. Throws BadRequest naming file and tensor when they are damaged.
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

}  // namespace spillway::runtime
