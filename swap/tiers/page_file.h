/// The file that a run keeps its pages in.
#pragma once
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "core/memory/free_ranges.h"

namespace spillway::swap {

/// A file `spillway-PID-STARTTIME@HOST.pages` in a directory that the user named, divided into extents. It is locked
/// while it is in use and removed at the end. Unlocked files of this host belong to runs that crashed, and are removed
/// when the next run starts there. Thread-safe.
class PageFile {
 public:
  static constexpr int64_t kAlignment = FreeRanges::kGranularity;

  /// Removes the files of crashed runs and makes this run's. Throws BadRequest naming `directory` when no file can be
  /// made, locked and written there.
  explicit PageFile(const std::filesystem::path& directory);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  /// Returns the offset of an extent of `bytes`, a multiple of kAlignment, whose space the file system has promised if
  /// it can. Throws DiskError naming the file, and how much it holds, when there is none left.
  int64_t allocate(int64_t bytes);
  void free(int64_t offset, int64_t bytes) noexcept;

  const std::filesystem::path& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_; }
  /// True when reads and writes bypass the page cache (O_DIRECT): memory, offsets and sizes must be multiples of
  /// kAlignment.
  bool direct() const noexcept { return direct_; }
  int64_t used_bytes() const noexcept;
  int64_t peak_bytes() const noexcept;

 private:
  bool grow(int64_t bytes);

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool direct_ = false;
  mutable std::mutex mutex_;
  FreeRanges free_;
  int64_t size_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

/// Returns the name of this host, which is part of its files' names. On a directory that hosts share, a lock may hold
/// on one host alone.
std::string page_file_host();

/// Returns true when a file of this name is a run's on `host`: `spillway-`, its process, when that started, perhaps a
/// number, `@`, the host, `.pages`.
bool is_page_file_name(std::string_view name, std::string_view host);

/// Removes this host's page files in `directory` that no live run holds. Files of live runs and everything else stay.
/// Returns how many were removed.
int64_t remove_stale_page_files(const std::filesystem::path& directory);

}  // namespace spillway::swap
