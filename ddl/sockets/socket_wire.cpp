#include "ddl/sockets/socket_wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/hash.h"

namespace spillway::ddl {
namespace {

/// The tag of the messages by which members tell that they have made a wire. Those of callers are positive.
constexpr int64_t kReadyTag = -1;
/// The number of vain polls after which a rank sleeps until something comes. It is small, because ranks may be more
/// than cores, and those that spin then hold up those that work.
constexpr int kPollsBeforeSleep = 20;
constexpr std::chrono::milliseconds kLongestSleep{1};
/// How often a wait for a rank that has not connected looks for its connection.
constexpr int kPollsBetweenLooks = 16;
/// The time in which a connection may come after its rank's end was noticed: they travel on their own.
constexpr std::chrono::milliseconds kGrace{200};
/// The bytes above which a message's body is read into its place and not through the bytes that are read ahead.
constexpr size_t kDirectBytes = 1024;

/// The largest message. More bytes than a process can have are nonsense, or no message's header.
constexpr uint64_t kMaxMessage = uint64_t{1} << 47;
/// The memory that a message which is kept aside gets at first.
constexpr uint64_t kKeptStep = 1 << 20;

std::string other_size(uint64_t came, uint64_t expected) {
  return str(came, " bytes came where ", expected, " were expected");
}

std::string text_of(int error) {
  return std::system_category().message(error);
}

}  // namespace

SocketWire::SocketWire(std::shared_ptr<SocketEndpoint> endpoint, uint64_t key, std::vector<int> members)
    : endpoint_(std::move(endpoint)),
      key_(key),
      members_(std::move(members)),
      rank_(place_of(endpoint_->rank(), members_)),
      hosts_(hosts_of(members_, endpoint_->hosts())),
      peers_(members_.size()) {}

std::unique_ptr<Transport> SocketWire::duplicate() {
  return std::make_unique<SocketWire>(endpoint_, hash_in(hash_in(key_, 1), ++children_), members_);
}

std::unique_ptr<Transport> SocketWire::group(std::span<const int> members) {
  const std::vector<int> list(members.begin(), members.end());
  uint64_t key = hash_in(hash_in(key_, 2), ++groups_[list]);
  std::vector<int> of_world;
  for (int member : list) {
    key = hash_in(key, static_cast<uint64_t>(member));
    of_world.push_back(members_[member]);
  }
  return std::make_unique<SocketWire>(endpoint_, key, std::move(of_world));
}

/// In round k each rank hears from the one 2^k before it, so after ⌈log2 size⌉ rounds from all, at least by others. A
/// rank that misses one which has ended tells so in the next rounds. Who waits for it would name that rank otherwise.
bool SocketWire::ready() {
  const int size = static_cast<int>(members_.size());
  for (; ready_distance_ < size; ready_distance_ *= 2) {
    const int before = (rank_ + size - ready_distance_) % size, after = (rank_ + ready_distance_) % size;
    if (!is_ready_round_) begin_ready_round(before, after);
    const bool sent = ready_passed(ready_requests_[1], after);
    if (!ready_passed(ready_requests_[0], before) || !sent) return false;
    is_ready_round_ = false;
    if (lost_ < 0) lost_ = heard_;
  }
  if (lost_ >= 0) throw std::runtime_error(str("rank ", lost_, " has ended"));
  return true;
}

void SocketWire::begin_ready_round(int before, int after) {
  is_ready_round_ = true;
  heard_ = -1;
  said_ = lost_;
  ready_requests_[0] = receive(before, static_cast<Tag>(kReadyTag), std::as_writable_bytes(std::span(&heard_, 1)));
  try {
    ready_requests_[1] = send(after, static_cast<Tag>(kReadyTag), std::as_bytes(std::span(&said_, 1)));
  } catch (const std::runtime_error&) {
    lost_ = lost_ < 0 ? members_[after] : lost_;
  }
}

bool SocketWire::ready_passed(Request& request, int peer) {
  require_own();
  try {
    if (test(request)) return true;
    if (!will_never_finish(request)) return false;
  } catch (const std::runtime_error&) {
    if (&request == ready_requests_.data()) throw;  // else the rank that it was for is out of reach
  }
  request = {};
  lost_ = lost_ < 0 ? members_[peer] : lost_;
  return true;
}

// ---- requests

void SocketWire::require_own() const {
  if (endpoint_->inherited())
    throw std::runtime_error("this process is a child of fork(), and the connections are its parent's");
}

int SocketWire::take_slot() {
  require_own();
  if (dead_) throw std::runtime_error("its communicator is dead");
  if (free_.empty()) {
    slots_.emplace_back();
    return static_cast<int>(slots_.size()) - 1;
  }
  const int slot = free_.back();
  free_.pop_back();
  slots_[slot] = {};
  return slot;
}

void SocketWire::finish(int slot, std::string error) {
  slots_[slot].done = true;
  slots_[slot].error = std::move(error);
}

Request SocketWire::send(int peer, Tag tag, std::span<const std::byte> bytes) {
  const int slot = take_slot();
  const auto number = static_cast<int64_t>(tag);
  if (peer == rank_) {
    deliver_to_self(number, bytes);
    finish(slot);
    return {slot, peer};
  }
  peers_[peer].sending.push_back({slot, {number, bytes.size()}, bytes});
  ++sending_;
  progress_sends(peers_[peer]);
  return {slot, peer};
}

Request SocketWire::receive(int peer, Tag tag, std::span<std::byte> bytes) {
  const int slot = take_slot();
  slots_[slot].bytes = bytes;
  const auto number = static_cast<int64_t>(tag);
  if (peer != kAnyRank) {
    if (!take_aside(peers_[peer], number, slot)) peers_[peer].posted.push_back({number, slot});
    return {slot, peer};
  }
  for (Peer& from : peers_)
    if (take_aside(from, number, slot)) return {slot, peer};
  posted_any_.push_back({number, slot});
  return {slot, peer};
}

bool SocketWire::test(Request& request) {
  if (!request.active()) return true;
  require_own();
  if (dead_) throw std::runtime_error("its communicator is dead");
  if (sending_ > 0 && !slots_[request.slot].done) progress_sends();
  if (!slots_[request.slot].done && request.peer == kAnyRank) {
    if (polls_ % kPollsBetweenLooks == 0) take_connections();
    for (Peer& peer : peers_) progress_receives(peer);
  } else if (!slots_[request.slot].done && request.peer != rank_) {
    Peer& peer = peers_[request.peer];
    if (!peer.in && !peer.closed && polls_ % kPollsBetweenLooks == 0) take_connections();
    progress_receives(peer);
  }
  if (!slots_[request.slot].done) return false;
  const std::string error = std::move(slots_[request.slot].error);
  polls_ = 0;
  free_.push_back(request.slot);
  request = {};
  if (!error.empty()) throw std::runtime_error(error);
  return true;
}

void SocketWire::abandon() noexcept {
  dead_ = true;
  for (Peer& peer : peers_) {
    peer.out.close();
    peer.in.close();
    peer.sending.clear();
    peer.posted.clear();
  }
  posted_any_.clear();
  sending_ = 0;
}

std::string SocketWire::end_of(const Peer& peer) const {
  return str("rank ", members_[&peer - peers_.data()], " has ended");
}

bool SocketWire::will_never_finish(const Request& request) {
  return request.active() && request.peer != kAnyRank && !slots_[request.slot].done && peers_[request.peer].closed;
}

void SocketWire::fail_sends(Peer& peer, const std::string& error) {
  for (const Outgoing& message : peer.sending) finish(message.slot, error);
  sending_ -= static_cast<int>(peer.sending.size());
  peer.sending.clear();
}

// ---- sending

void SocketWire::progress_sends() {
  for (Peer& peer : peers_)
    if (!peer.sending.empty()) progress_sends(peer);
}

bool SocketWire::connect(Peer& peer) {
  if (peer.out) return true;
  try {
    auto [socket, hello] = endpoint_->connect(members_[&peer - peers_.data()], key_);
    if (!socket) return false;
    peer.out = std::move(socket);
    peer.hello = hello;
    return true;
  } catch (const std::runtime_error& error) {
    fail_sends(peer, error.what());  // only these; another request's test may have called
    return false;
  }
}

bool SocketWire::was_dropped(const Peer& peer) {
  char byte = 0;
  const ssize_t count = recv(peer.out.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return peer.hello && peer.hello_sent == 0 && (count == 0 || (count < 0 && errno == ECONNRESET));
}

bool SocketWire::send_hello(Peer& peer) {
  while (peer.hello) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&*peer.hello);  // NOLINT: a message is its bytes
    const ssize_t sent =
        ::send(peer.out.fd(), bytes + peer.hello_sent, sizeof(Hello) - peer.hello_sent, MSG_NOSIGNAL | MSG_MORE);
    if (sent < 0) return false;
    peer.hello_sent += static_cast<size_t>(sent);
    if (peer.hello_sent == sizeof(Hello)) peer.hello.reset();
  }
  return true;
}

void SocketWire::progress_sends(Peer& peer) {
  if (peer.out && peer.hello && was_dropped(peer)) peer.out.close();
  if (!connect(peer)) return;
  while (!peer.sending.empty()) {
    Outgoing& message = peer.sending.front();
    const size_t in_header = std::min(message.sent, sizeof(MessageHeader)), in_body = message.sent - in_header;
    std::array<iovec, 2> parts{
        iovec{reinterpret_cast<char*>(&message.header) + in_header, sizeof(MessageHeader) - in_header},  // NOLINT
        iovec{const_cast<std::byte*>(message.bytes.data()) + in_body, message.bytes.size() - in_body}};  // NOLINT
    msghdr call = {};
    call.msg_iov = parts.data();
    call.msg_iovlen = parts.size();
    const ssize_t sent = send_hello(peer) ? sendmsg(peer.out.fd(), &call, MSG_NOSIGNAL) : -1;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) return fail_sends(peer, str(end_of(peer), ": ", text_of(errno)));
    message.sent += static_cast<size_t>(sent);
    if (message.sent < sizeof(MessageHeader) + message.bytes.size()) continue;
    finish(message.slot);
    peer.sending.pop_front();
    --sending_;
  }
}

void SocketWire::deliver_to_self(int64_t tag, std::span<const std::byte> bytes) {
  Peer& self = peers_[rank_];
  if (const int slot = match(self, tag); slot >= 0)
    deliver(slot, bytes);
  else
    self.aside[tag].emplace_back(bytes.begin(), bytes.end());
}

// ---- receiving

void SocketWire::take_connections() {
  endpoint_->progress();
  for (auto& [rank, socket] : endpoint_->take(key_)) {
    const int place = place_of(rank, members_);
    if (place == std::ssize(peers_)) continue;
    Peer& peer = peers_[place];
    if (!peer.in && !peer.closed) peer.in = std::move(socket);  // a rank makes one connection only
  }
  for (Peer& peer : peers_) {
    if (peer.in || peer.closed || peer.posted.empty() || !endpoint_->gone(members_[&peer - peers_.data()])) continue;
    if (!peer.missed) peer.missed = Clock::now();
    peer.closed = Clock::now() - *peer.missed > kGrace;
  }
}

int SocketWire::match(Peer& peer, int64_t tag) {
  for (std::deque<Posted>* list : {&peer.posted, &posted_any_}) {
    const auto found = std::find_if(list->begin(), list->end(), [&](const Posted& p) { return p.tag == tag; });
    if (found == list->end()) continue;
    const int slot = found->slot;
    list->erase(found);
    return slot;
  }
  return -1;
}

void SocketWire::deliver(int slot, std::span<const std::byte> bytes) {
  const std::span<std::byte> into = slots_[slot].bytes;
  if (into.size() != bytes.size()) return finish(slot, other_size(bytes.size(), into.size()));
  std::copy(bytes.begin(), bytes.end(), into.begin());
  finish(slot);
}

bool SocketWire::take_aside(Peer& peer, int64_t tag, int slot) {
  const auto found = peer.aside.find(tag);
  if (found == peer.aside.end() || found->second.empty()) return false;
  deliver(slot, found->second.front());
  found->second.pop_front();
  return true;
}

void SocketWire::progress_receives(Peer& peer) {
  while (peer.in && waits(peer)) {
    if (peer.header_size < sizeof(MessageHeader) && !read_header(peer)) return;
    if (!read_body(peer)) return;
    end_body(peer);
  }
}

size_t SocketWire::read(Peer& peer, std::span<std::byte> into) {
  while (true) {
    const ssize_t count = recv(peer.in.fd(), into.data(), into.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<size_t>(count);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return 0;
    peer.closed = true;  // or it is out of reach for good
    peer.in.close();
    return 0;
  }
}

bool SocketWire::fill(Peer& peer) {
  if (peer.ahead_begin < peer.ahead_end) return true;
  peer.ahead_begin = 0;
  peer.ahead_end = read(peer, peer.ahead);
  return peer.ahead_end > 0;
}

bool SocketWire::read_header(Peer& peer) {
  while (peer.header_size < sizeof(MessageHeader)) {
    if (!fill(peer)) return false;
    const size_t count = std::min(sizeof(MessageHeader) - peer.header_size, peer.ahead_end - peer.ahead_begin);
    auto* header = reinterpret_cast<std::byte*>(&peer.header);  // NOLINT: a message is its bytes
    std::memcpy(header + peer.header_size, peer.ahead.data() + peer.ahead_begin, count);
    peer.header_size += count;
    peer.ahead_begin += count;
  }
  begin_body(peer);
  return true;
}

void SocketWire::begin_body(Peer& peer) {
  if (peer.header.size > kMaxMessage) {
    peer.in.close();
    peer.closed = true;
    throw std::runtime_error(
        str("rank ", members_[&peer - peers_.data()], " announces a message of ", peer.header.size, " bytes"));
  }
  peer.come = 0;
  peer.kept.clear();
  peer.slot = match(peer, peer.header.tag);
}

bool SocketWire::drops_body(const Peer& peer) const {
  return peer.slot >= 0 && slots_[peer.slot].bytes.size() != peer.header.size;
}

std::span<std::byte> SocketWire::room_for_body(Peer& peer) {
  if (peer.slot >= 0) return slots_[peer.slot].bytes.subspan(peer.come);
  if (peer.kept.size() == peer.come)
    peer.kept.resize(std::min(peer.header.size, std::max(2 * peer.come, peer.come + kKeptStep)));
  return std::span(peer.kept).subspan(peer.come);
}

bool SocketWire::read_body(Peer& peer) {
  const bool drops = drops_body(peer);
  while (peer.come < peer.header.size) {
    const std::span<std::byte> rest = drops ? std::span<std::byte>() : room_for_body(peer);
    if (peer.ahead_begin == peer.ahead_end && rest.size() >= kDirectBytes) {
      const size_t count = read(peer, rest);
      if (count == 0) return false;
      peer.come += count;
      continue;
    }
    if (!fill(peer)) return false;
    const size_t left = drops ? peer.header.size - peer.come : rest.size();
    const size_t count = std::min(left, peer.ahead_end - peer.ahead_begin);
    if (!drops) std::memcpy(rest.data(), peer.ahead.data() + peer.ahead_begin, count);
    peer.ahead_begin += count;
    peer.come += count;
  }
  return true;
}

void SocketWire::end_body(Peer& peer) {
  peer.header_size = 0;
  const bool drops = drops_body(peer);
  const int slot = std::exchange(peer.slot, -1);
  if (slot < 0)
    peer.aside[peer.header.tag].push_back(std::exchange(peer.kept, {}));
  else if (drops)
    finish(slot, other_size(peer.header.size, slots_[slot].bytes.size()));
  else
    finish(slot);
}

// ---- waiting

void SocketWire::idle(std::chrono::steady_clock::time_point until) {
  if (++polls_ < kPollsBeforeSleep)
    std::this_thread::yield();
  else
    poll_descriptors(std::min(until, Clock::now() + kLongestSleep));
}

void SocketWire::poll_descriptors(std::chrono::steady_clock::time_point until) {
  polled_.clear();
  bool connections_missing = !posted_any_.empty();
  for (Peer& peer : peers_) {
    if (peer.in && waits(peer)) polled_.push_back({peer.in.fd(), POLLIN, 0});
    if (peer.out && !peer.sending.empty()) polled_.push_back({peer.out.fd(), POLLOUT, 0});
    connections_missing |= !peer.in && !peer.posted.empty();
  }
  if (connections_missing) polled_.push_back({endpoint_->events(), POLLIN, 0});
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  const timespec timeout{.tv_sec = 0,
                         .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  if (ppoll(polled_.data(), polled_.size(), &timeout, nullptr) <= 0) return;
  if (connections_missing) take_connections();
  // Also what is not waited for yet: were it left, the next sleep would end at once.
  for (Peer& peer : peers_) progress_receives(peer);
}

}  // namespace spillway::ddl
