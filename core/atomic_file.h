/// Files that appear whole or not at all.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace spillway::report {

/// A file that is written beside its place and moved there by commit(); without that, nothing stays behind.
class PendingFile {
 public:
  /// Writes `bytes`, to the device, under `path` with ".part" added. Throws std::system_error naming `path`.
  PendingFile(std::filesystem::path path, std::string_view bytes);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  /// Replaces what was at `path`. Throws std::system_error naming `path`.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path part_;
  bool pending_ = true;
};

/// Makes `dir` and its parents. Throws std::system_error naming `dir`.
void make_folder(const std::filesystem::path& dir);

}  // namespace spillway::report
