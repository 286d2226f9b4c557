#include "runtime/io/unpacked_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/error.h"

namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;

constexpr int64_t kBufferBytes = 1 << 16;
constexpr int64_t kMaxCallBytes = 1 << 30;  // zlib counts in 32 bits
constexpr int kGzipWindow = 15 + 16;        // the largest window, in gzip's format
constexpr int64_t kMagicBytes = 2;          // a member begins with them
constexpr unsigned char kMagic[] = {0x1f, 0x8b};

[[noreturn]] void refuse_to_unpack(const Path& path, const std::string& why) {
  throw BadRequest(str("cannot read '", path.string(), "': ", why));
}

File open_regular(const Path& path, int64_t& bytes) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // O_NONBLOCK does not wait for a pipe
  if (file.get() < 0) refuse_to_unpack(path, errno == ENOENT ? "no such file" : std::strerror(errno));
  bytes = regular_file_bytes(file, path);
  if (bytes < 0) refuse_to_unpack(path, "it is not a file");
  return file;
}

}  // namespace

/// The state of unpacking.
struct UnpackedFile::Stream {
  Stream() {
    if (::inflateInit2(&zlib, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~Stream() { ::inflateEnd(&zlib); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  z_stream zlib{};
  bool in_member = true;
  bool ended = false;  ///< nothing more comes: of the last member, or of the file
};

UnpackedFile::UnpackedFile(const Path& path)
    : path_(path), file_(open_regular(path, bytes_)), buffer_(std::make_unique<char[]>(kBufferBytes)) {
  while (end_ < kMagicBytes && fill()) {
  }
  if (end_ >= kMagicBytes && std::memcmp(buffer_.get(), kMagic, kMagicBytes) == 0) stream_ = std::make_unique<Stream>();
}

UnpackedFile::~UnpackedFile() = default;

int64_t UnpackedFile::read(char* bytes, int64_t count) {
  int64_t done = 0;
  if (!stream_) {
    done = std::min(count, end_ - begin_);
    std::memcpy(bytes, buffer_.get() + begin_, done);
    begin_ += done;
    while (done < count) {
      const int64_t got = read_file(bytes + done, count - done);
      if (got == 0) break;
      done += got;
    }
  }
  while (stream_ && done < count && !stream_->ended) {
    stream_->zlib.next_out = reinterpret_cast<Bytef*>(bytes + done);
    const int64_t room = std::min(count - done, kMaxCallBytes);
    stream_->zlib.avail_out = room;
    unpack();
    done += room - stream_->zlib.avail_out;
  }
  position_ += done;
  return done;
}

bool UnpackedFile::skip_to(int64_t offset) {
  std::array<char, 1 << 14> skipped;
  while (position_ < offset)
    if (read(skipped.data(), std::min<int64_t>(skipped.size(), offset - position_)) == 0) return false;
  return position_ == offset;
}

bool UnpackedFile::cut_short() const noexcept {
  return stream_ && stream_->ended && stream_->in_member;
}

int64_t UnpackedFile::read_file(char* bytes, int64_t count) {
  for (;;) {
    const ssize_t got = ::read(file_.get(), bytes, count);
    if (got >= 0) return got;
    if (errno != EINTR) refuse_to_unpack(path_, std::strerror(errno));
  }
}

/// Reads more of the file behind the bytes that were not taken yet. Returns false at the file's end.
bool UnpackedFile::fill() {
  std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const int64_t got = read_file(buffer_.get() + end_, kBufferBytes - end_);
  end_ += got;
  return got > 0;
}

/// Unpacks into the room that zlib was told of, as far as the bytes of the buffer reach. Ends the stream at its end.
void UnpackedFile::unpack() {
  if (!stream_->in_member && !enter_next_member()) return;
  z_stream& zlib = stream_->zlib;
  const bool at_end = begin_ == end_ && !fill();
  zlib.next_in = reinterpret_cast<Bytef*>(buffer_.get() + begin_);
  zlib.avail_in = end_ - begin_;
  const unsigned room = zlib.avail_out;
  const int code = ::inflate(&zlib, Z_NO_FLUSH);
  begin_ = end_ - zlib.avail_in;
  if (code == Z_MEM_ERROR) throw std::bad_alloc();
  if (code == Z_STREAM_END)
    stream_->in_member = false;
  else if (code != Z_OK && code != Z_BUF_ERROR)
    refuse_to_unpack(path_,
                     str("the compressed data is damaged (", zlib.msg ? zlib.msg : "it needs a dictionary", ")"));
  else if (at_end && zlib.avail_out == room)
    stream_->ended = true;
}

/// Looks for a member behind the last one, beyond zeros that pad the file. Returns false when there is none.
bool UnpackedFile::enter_next_member() {
  do {
    while (begin_ < end_ && buffer_[begin_] == 0) ++begin_;
  } while (begin_ == end_ && fill());
  while (end_ - begin_ < kMagicBytes && fill()) {
  }
  if (end_ - begin_ < kMagicBytes || std::memcmp(buffer_.get() + begin_, kMagic, kMagicBytes) != 0) {
    stream_->ended = true;
    return false;
  }
  stream_->in_member = true;
  if (::inflateReset(&stream_->zlib) != Z_OK) refuse_to_unpack(path_, "zlib cannot go on to its next part");
  return true;
}

}  // namespace spillway::runtime
