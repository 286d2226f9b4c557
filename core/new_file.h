/// Files that replace others only when they are complete.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>
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

/// Returns the size of a regular file; -1 for a folder, a pipe or a device, whose size says nothing. Throws
/// std::system_error.
int64_t regular_file_bytes(const File& file, const std::filesystem::path& path);

/// Writes all of the bytes. Throws std::system_error naming `path`.
void write_all(const File& file, const void* bytes, size_t count, const std::filesystem::path& path);

/// The users who may read a new file: its owner alone, or everyone whom the umask allows.
enum class Readers : uint8_t { owner, everyone };

/// A file that is written as `path`.part and renamed to `path` at the end. So `path` is always complete: the former
/// file or the new one. A file or link that has the name already is replaced and never written through. So a stranger
/// who can write to the folder cannot send the bytes elsewhere. Of two writers of one file, the one that began later
/// completes it, and commit() of the other throws. All members throw std::system_error naming the file when it cannot
/// be written (a full disk); the former file is then intact.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path, Readers readers = Readers::owner);
  /// Removes the written file when commit() was not called.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Forces the bytes to the disk, so that commit() cannot fail for want of room.
  void flush();
  /// Forces the bytes to the disk and renames the file.
  void commit();

 private:
  std::filesystem::path path_, part_;
  File file_;
  bool committed_ = false;
};

}  // namespace spillway
