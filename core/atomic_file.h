/// Files that appear whole or not at all.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace spillway::report {

/// A file that is written beside its place and moved there by commit(). Without commit(), nothing stays behind.
class PendingFile {
 public:
  /// Writes `bytes` under `path` with ".part" added, and flushes them to the device. Throws std::system_error naming
  /// `path`.
  PendingFile(std::filesystem::path path, std::string_view bytes);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  /// Moves the file to `path`, replacing a file that is there. Throws std::system_error naming `path`.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path part_;
  bool pending_ = true;
};

/// Makes `dir` and its parents. Throws std::system_error naming `dir`.
void make_folder(const std::filesystem::path& dir);

}  // namespace spillway::report
