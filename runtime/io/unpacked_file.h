/// The bytes of a file, unpacked where it is compressed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>

#include "core/new_file.h"

namespace spillway::runtime {

/// A file that is read from its beginning. One that begins like a gzip stream is unpacked, whatever its name says.
/// Several members follow each other as one stream. Zeros and other bytes behind the last member are no part of it.
/// zlib's gzread() is not used, because it takes a file that ends within a stream for a whole one when its bytes and
/// the caller's room end together.
class UnpackedFile {
 public:
  /// Opens a regular file. Throws BadRequest naming the file and the error.
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  /// Fills as much of `bytes` as the file holds, and returns the number of bytes. Throws BadRequest naming the file
  /// when the compressed data is damaged or a checksum differs. An early end is not an error here; see cut_short().
  int64_t read(char* bytes, int64_t count);
  /// Reads up to byte `offset` of the unpacked bytes, which must not lie behind. Returns false when the file ends
  /// first.
  bool skip_to(int64_t offset);
  /// Returns true when the file has ended within a compressed stream: before its data's end, or before its checksum's.
  bool cut_short() const noexcept;
  /// Returns true for compressed files.
  bool compressed() const noexcept { return stream_ != nullptr; }
  /// Returns the size on the disk.
  int64_t bytes_on_disk() const noexcept { return bytes_; }

 private:
  struct Stream;

  int64_t read_file(char* bytes, int64_t count);
  bool fill();
  void unpack();
  bool enter_next_member();

  std::filesystem::path path_;
  int64_t bytes_ = 0;  ///< on the disk; before file_, whose opening tells it
  File file_;
  int64_t position_ = 0;  ///< how many unpacked bytes were read
  std::unique_ptr<char[]> buffer_;
  int64_t begin_ = 0, end_ = 0;  ///< bytes of the buffer that were not taken yet
  std::unique_ptr<Stream> stream_;
};

}  // namespace spillway::runtime
