#include "core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace spillway::report {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(std::string_view what, const fs::path& path, int error) {
  throw std::system_error(error, std::generic_category(), str("[report] cannot ", what, " ", path.string()));
}

/// Returns 0, or the errno of the call that failed. Some file systems report a full disk only at fsync or close.
int write_and_close(int file, std::string_view bytes) {
  int error = 0;
  while (error == 0 && !bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written >= 0)
      bytes.remove_prefix(written);
    else if (errno != EINTR)
      error = errno;
  }
  if (error == 0 && ::fsync(file) != 0 && errno != EINVAL && errno != EROFS) error = errno;  // such files have no fsync
  if (::close(file) != 0 && error == 0 && errno != EINTR) error = errno;
  return error;
}

}  // namespace

PendingFile::PendingFile(fs::path path, std::string_view bytes) : path_(std::move(path)), part_(path_) {
  part_ += ".part";
  if (fs::is_directory(path_)) fail("write", path_, EISDIR);
  const int file = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("write", path_, errno);
  if (const int error = write_and_close(file, bytes); error != 0) {
    ::unlink(part_.c_str());
    fail("write", path_, error);
  }
}

PendingFile::~PendingFile() {
  if (pending_) ::unlink(part_.c_str());
}

void PendingFile::commit() {
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("write", path_, errno);
  pending_ = false;
}

void make_folder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (!error && !fs::is_directory(dir, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw std::system_error(error, str("[report] cannot make folder ", dir.string()));
}

}  // namespace spillway::report
