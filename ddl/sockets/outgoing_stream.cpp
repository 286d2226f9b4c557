#include "ddl/sockets/outgoing_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace spillway::ddl {

bool OutgoingStream::connect() {
  if (socket_) return true;
  try {
    auto [socket, hello] = endpoint_.connect(rank_, wire_);
    if (!socket) return false;
    socket_ = std::move(socket);
    hello_ = hello;
    return true;
  } catch (const std::runtime_error& error) {
    fail(error.what());  // only these; another request's test may have called
    return false;
  }
}

bool OutgoingStream::was_dropped() const {
  char byte = 0;
  const ssize_t count = recv(socket_.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return hello_ && hello_sent_ == 0 && (count == 0 || (count < 0 && errno == ECONNRESET));
}

bool OutgoingStream::send_hello() {
  while (hello_) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&*hello_);  // NOLINT: a message is its bytes
    const ssize_t sent =
        ::send(socket_.fd(), bytes + hello_sent_, sizeof(Hello) - hello_sent_, MSG_NOSIGNAL | MSG_MORE);
    if (sent < 0) return false;
    hello_sent_ += sent;
    if (hello_sent_ == sizeof(Hello)) hello_.reset();
  }
  return true;
}

void OutgoingStream::progress() {
  if (socket_ && hello_ && was_dropped()) socket_.close();
  if (!connect()) return;
  while (!messages_.empty()) {
    Message& message = messages_.front();
    const size_t in_header = std::min(message.sent, sizeof(MessageHeader)), in_body = message.sent - in_header;
    std::array<iovec, 2> parts{
        iovec{reinterpret_cast<char*>(&message.header) + in_header, sizeof(MessageHeader) - in_header},  // NOLINT
        iovec{const_cast<std::byte*>(message.bytes.data()) + in_body, message.bytes.size() - in_body}};  // NOLINT
    msghdr call = {};
    call.msg_iov = parts.data();
    call.msg_iovlen = parts.size();
    const ssize_t sent = send_hello() ? sendmsg(socket_.fd(), &call, MSG_NOSIGNAL) : -1;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) return fail(str("rank ", rank_, " has ended: ", std::system_category().message(errno)));
    message.sent += sent;
    if (message.sent < sizeof(MessageHeader) + message.bytes.size()) continue;
    requests_.finish(message.slot);
    messages_.pop_front();
  }
}

void OutgoingStream::fail(const std::string& error) {
  for (const Message& message : messages_) requests_.finish(message.slot, error);
  messages_.clear();
}

void OutgoingStream::abandon() noexcept {
  socket_.close();
  messages_.clear();
}

}  // namespace spillway::ddl
