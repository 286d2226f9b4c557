/// Files that replace others only when they are whole.
#pragma once
#include <cstdint>
#include <filesystem>
#include <utility>

namespace spillway {

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

/// The size of a regular file; -1 for a folder, a pipe or a device, whose size says nothing. Throws std::system_error.
int64_t regular_file_bytes(const File& file, const std::filesystem::path& path);

/// Writes `path`.part and renames it to `path` at the end, so that `path` is always whole: the former file or the new
/// one. Only the owner may read it. What has the name already, a link too, is replaced and never written through, so a
/// stranger who can write to the folder cannot send the bytes elsewhere. All throw std::system_error naming the file
/// when it cannot be written (a full disk); the former file is then intact.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path);
  /// Without commit(): removes what was written.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, size_t count);
  /// Forces the bytes to the disk and renames.
  void commit();

 private:
  std::filesystem::path path_, part_;
  File file_;
  bool committed_ = false;
};

}  // namespace spillway
