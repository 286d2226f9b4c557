#include "ddl/sockets/incoming_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace spillway::ddl {
namespace {

/// The bytes above which a message's body is read into its place and not through the bytes that are read ahead.
constexpr size_t kDirectBytes = 1024;
/// The largest message. More bytes than a process can have are nonsense, or no message's header.
constexpr uint64_t kMaxMessage = uint64_t{1} << 47;
/// The memory that a message which is kept aside gets at first.
constexpr uint64_t kKeptStep = 1 << 20;

}  // namespace

void SocketReader::open(Socket socket) {
  if (!socket_ && !has_ended_) socket_ = std::move(socket);
}

void SocketReader::end() noexcept {
  has_ended_ = true;
  socket_.close();
}

size_t SocketReader::read(std::span<std::byte> into) {
  while (true) {
    const ssize_t count = recv(socket_.fd(), into.data(), into.size(), MSG_DONTWAIT);
    if (count > 0) return count;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return 0;
    end();  // or it is out of reach for good
    return 0;
  }
}

bool SocketReader::fill() {
  if (begin_ < end_) return true;
  begin_ = 0;
  end_ = read(ahead_);
  return end_ > 0;
}

void IncomingStream::miss_connection() {
  if (!missed_) missed_ = Clock::now();
  if (Clock::now() - *missed_ > kGraceAfterEnd) reader_.end();
}

void IncomingStream::abandon() noexcept {
  reader_.close();
  posted_.clear();
}

int IncomingStream::match(int64_t tag) {
  const int slot = posted_.take(tag);
  return slot != PostedReceives::kNone ? slot : posted_for_any_.take(tag);
}

bool IncomingStream::take_aside(int64_t tag, int slot) {
  const auto found = aside_.find(tag);
  if (found == aside_.end() || found->second.empty()) return false;
  requests_.deliver(slot, found->second.front());
  found->second.pop_front();
  return true;
}

void IncomingStream::deliver(int64_t tag, std::span<const std::byte> bytes) {
  if (const int slot = match(tag); slot != PostedReceives::kNone)
    requests_.deliver(slot, bytes);
  else
    aside_[tag].emplace_back(bytes.begin(), bytes.end());
}

void IncomingStream::progress() {
  while (is_open() && is_awaited()) {
    if (header_bytes_ < sizeof(MessageHeader) && !read_header()) return;
    if (!read_body()) return;
    end_body();
  }
}

bool IncomingStream::read_header() {
  while (header_bytes_ < sizeof(MessageHeader)) {
    if (!reader_.fill()) return false;
    const size_t count = std::min(sizeof(MessageHeader) - header_bytes_, reader_.ahead().size());
    auto* header = reinterpret_cast<std::byte*>(&header_);  // NOLINT: a message is its bytes
    std::memcpy(header + header_bytes_, reader_.ahead().data(), count);
    header_bytes_ += count;
    reader_.consume(count);
  }
  begin_body();
  return true;
}

void IncomingStream::begin_body() {
  if (header_.size > kMaxMessage) {
    reader_.end();
    throw std::runtime_error(str("rank ", rank_, " announces a message of ", header_.size, " bytes"));
  }
  body_bytes_ = 0;
  kept_.clear();
  slot_ = match(header_.tag);
}

bool IncomingStream::drops_body() const {
  return slot_ != PostedReceives::kNone && requests_.bytes(slot_).size() != header_.size;
}

std::span<std::byte> IncomingStream::room_for_body() {
  if (slot_ != PostedReceives::kNone) return requests_.bytes(slot_).subspan(body_bytes_);
  if (kept_.size() == body_bytes_)
    kept_.resize(std::min(header_.size, std::max(2 * body_bytes_, body_bytes_ + kKeptStep)));
  return std::span(kept_).subspan(body_bytes_);
}

bool IncomingStream::read_body() {
  const bool drops = drops_body();
  while (body_bytes_ < header_.size) {
    const std::span<std::byte> rest = drops ? std::span<std::byte>() : room_for_body();
    if (reader_.ahead().empty() && rest.size() >= kDirectBytes) {
      const size_t count = reader_.read(rest);
      if (count == 0) return false;
      body_bytes_ += count;
      continue;
    }
    if (!reader_.fill()) return false;
    const size_t left = drops ? header_.size - body_bytes_ : rest.size();
    const size_t count = std::min(left, reader_.ahead().size());
    if (!drops) std::memcpy(rest.data(), reader_.ahead().data(), count);
    reader_.consume(count);
    body_bytes_ += count;
  }
  return true;
}

void IncomingStream::end_body() {
  header_bytes_ = 0;
  const bool drops = drops_body();
  const int slot = std::exchange(slot_, PostedReceives::kNone);
  if (slot == PostedReceives::kNone)
    end_kept();
  else if (drops)
    requests_.refuse(slot, header_.size);
  else
    requests_.finish(slot);
}

void IncomingStream::end_kept() {
  std::vector<std::byte> message = std::exchange(kept_, {});
  if (const int slot = match(header_.tag); slot != PostedReceives::kNone)
    requests_.deliver(slot, message);
  else
    aside_[header_.tag].push_back(std::move(message));
}

}  // namespace spillway::ddl
