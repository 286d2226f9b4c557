#include "core/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace spillway {
namespace {

using Path = std::filesystem::path;

[[noreturn]] void fail(const Path& path, const char* what) {
  throw std::system_error(errno, std::generic_category(), str("cannot ", what, " '", path.string(), "'"));
}

/// Creates a file that no process has open: a file that has the name already is unlinked first.
int open_fresh(const Path& path, Readers readers) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(path, "replace");
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                readers == Readers::owner ? 0600 : 0666);
  if (descriptor < 0) fail(path, "write");
  return descriptor;
}

/// True when `path` names the open file, and no other that took its place.
bool is_named(const File& file, const Path& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(file.get(), &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

void sync_folder(const Path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, "open");
  const File file(descriptor);
  if (::fsync(descriptor) != 0) fail(folder, "write");
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t regular_file_bytes(const File& file, const Path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "read");
  return S_ISREG(status.st_mode) ? status.st_size : -1;
}

void write_all(const File& file, const void* bytes, size_t count, const Path& path) {
  for (const char* at = static_cast<const char*>(bytes); count > 0;) {
    const ssize_t written = ::write(file.get(), at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "write");
    at += written;
    count -= written;
  }
}

NewFile::NewFile(Path path, Readers readers)
    : path_(std::move(path)), part_(path_.string() + ".part"), file_(open_fresh(part_, readers)) {
  if (!std::filesystem::is_directory(path_)) return;
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);  // no destructor follows an exception from here
  errno = EISDIR;
  fail(path_, "write");
}

NewFile::~NewFile() {
  std::error_code ignored;
  if (!committed_ && is_named(file_, part_)) std::filesystem::remove(part_, ignored);
}

void NewFile::write(const void* bytes, size_t count) {
  write_all(file_, bytes, count, part_);
}

void NewFile::flush() {
  if (::fsync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) fail(part_, "write");  // such files have no fsync
}

void NewFile::commit() {
  flush();
  if (!is_named(file_, part_))
    throw std::system_error(EBUSY, std::generic_category(),
                            str("cannot complete '", path_.string(), "', which another process writes too"));
  std::filesystem::rename(part_, path_);
  committed_ = true;
  sync_folder(path_.parent_path());
}

}  // namespace spillway
