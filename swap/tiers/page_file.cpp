#include "swap/tiers/page_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::swap {
namespace {

/// The bytes by which files grow at once, so that extents of a step lie close together.
constexpr int64_t kGrowthBytes = 64 << 20;

/// Returns when this process started, in the kernel's ticks. With its id, that is a name that no other process of this
/// host has.
std::string process_start() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the program's name in front of it may hold anything
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field.empty() ? "0" : field;
}

[[noreturn]] void refuse(const std::filesystem::path& directory, std::string_view what, int error) {
  throw BadRequest(str("[disk] cannot ", what, " in the directory '", directory.string(), "': ", std::strerror(error),
                       "; name a directory that exists and can be written (--disk)"));
}

/// Makes a new, empty, locked file; `path` gets its name.
int create_locked(const std::filesystem::path& directory, std::filesystem::path& path) {
  const std::string stem = str("spillway-", ::getpid(), "-", process_start()),
                    suffix = str("@", page_file_host(), ".pages");
  for (int attempt = 0;; ++attempt) {
    path = directory / (attempt ? str(stem, "-", attempt, suffix) : stem + suffix);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) refuse(directory, "make a page file", errno);
    // Another run that starts now may take the file for a crashed run's before it is locked; it is gone then.
    const int error = ::flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    struct stat status {};
    if (!error && ::fstat(file, &status) == 0 && status.st_nlink > 0) return file;
    ::close(file);
    if (!error || error == EWOULDBLOCK) continue;
    ::unlink(path.c_str());
    refuse(directory, "lock a page file", error);
  }
}

/// True when the file takes reads and writes that bypass the page cache; its flags are left so.
bool try_direct(int file) {
  const int flags = ::fcntl(file, F_GETFL);
  if (::fcntl(file, F_SETFL, flags | O_DIRECT) != 0) return false;
  std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(PageFile::kAlignment, PageFile::kAlignment),
                                                    &std::free);
  std::memset(block.get(), 0, PageFile::kAlignment);
  if (::pwrite(file, block.get(), PageFile::kAlignment, 0) == PageFile::kAlignment &&
      ::pread(file, block.get(), PageFile::kAlignment, 0) == PageFile::kAlignment)
    return true;
  ::fcntl(file, F_SETFL, flags);
  return false;
}

}  // namespace

PageFile::PageFile(const std::filesystem::path& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (!std::filesystem::is_directory(status)) refuse(directory, "keep pages", error ? error.value() : ENOTDIR);
  remove_stale_page_files(directory);
  descriptor_ = create_locked(directory, path_);
  direct_ = try_direct(descriptor_);
}

PageFile::~PageFile() {
  ::unlink(path_.c_str());  // before the lock goes, so that no other run does it; an error means that it went already
  ::close(descriptor_);
}

int64_t PageFile::allocate(int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto offset = free_.take(bytes);
  if (!offset) {
    const int64_t wanted = round_up(bytes, kAlignment);
    if (!grow(std::max(wanted, kGrowthBytes)) && !grow(wanted))
      throw DiskError(str("[disk] no room for a page of ", format_bytes(bytes), " in '", path_.string(),
                          "': ", std::strerror(errno), "; it holds ", format_bytes(used_bytes_)));
    offset = free_.take(bytes);
  }
  peak_bytes_ = std::max(peak_bytes_, used_bytes_ += round_up(bytes, kAlignment));
  return *offset;
}

void PageFile::free(int64_t offset, int64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  free_.give(offset, bytes);
  used_bytes_ -= round_up(bytes, kAlignment);
}

/// Grows the file. Returns false, with errno set, when the disk has no such room.
bool PageFile::grow(int64_t bytes) {
  int failed = 0;
  do failed = ::fallocate(descriptor_, 0, size_bytes_, bytes);
  while (failed && errno == EINTR);
  if (failed && (errno == EOPNOTSUPP || errno == ENOSYS))  // this file system promises nothing; writes will find out
    failed = ::ftruncate(descriptor_, size_bytes_ + bytes);
  if (failed) return false;
  free_.give(size_bytes_, bytes);
  size_bytes_ += bytes;
  return true;
}

int64_t PageFile::used_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return used_bytes_;
}
int64_t PageFile::peak_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

std::string page_file_host() {
  char host[HOST_NAME_MAX + 1] = "";
  (void)::gethostname(host, sizeof(host) - 1);
  return host;
}

bool is_page_file_name(std::string_view name, std::string_view host) {
  constexpr std::string_view kPrefix = "spillway-";
  const std::string suffix = str("@", host, ".pages");
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix) || name.size() < kPrefix.size() + suffix.size())
    return false;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  for (int numbers = 1;; ++numbers) {
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) return false;
    if (digits == name.size()) return numbers == 2 || numbers == 3;
    if (name[digits] != '-') return false;
    name.remove_prefix(digits + 1);
  }
}

int64_t remove_stale_page_files(const std::filesystem::path& directory) {
  const std::string host = page_file_host();
  int64_t removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (!is_page_file_name(entry.path().filename().string(), host) || !entry.is_regular_file(error)) continue;
    const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;  // gone meanwhile, or another user's
    // The name may be another file's by now: its owner removed this one and made a new one.
    struct stat status {};
    if (::flock(file, LOCK_EX | LOCK_NB) == 0 && ::fstat(file, &status) == 0 && status.st_nlink > 0)
      removed += ::unlink(entry.path().c_str()) == 0;
    ::close(file);
  }
  return removed;
}

}  // namespace spillway::swap
