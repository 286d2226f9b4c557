#include "ddl/sockets/socket_wire.h"

#include <poll.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/hash.h"

namespace spillway::ddl {
namespace {

/// The tag of the messages by which members tell that they have made a wire. Those of callers are positive.
constexpr Tag kReadyTag{-1};
constexpr std::chrono::milliseconds kMaxSleep{1};
/// How often a wait for a rank that has not connected looks for its connection.
constexpr int kPollsBetweenLooks = 16;

int64_t number_of(Tag tag) {
  return static_cast<int64_t>(tag);
}

}  // namespace

SocketWire::SocketWire(std::shared_ptr<SocketEndpoint> endpoint, uint64_t key, std::vector<int> members)
    : endpoint_(std::move(endpoint)),
      key_(key),
      members_(std::move(members)),
      rank_(place_of(endpoint_->rank(), members_)),
      hosts_(hosts_of(members_, endpoint_->hosts())) {
  outgoing_.reserve(members_.size());
  incoming_.reserve(members_.size());
  for (const int member : members_) {
    outgoing_.emplace_back(*endpoint_, requests_, key_, member);
    incoming_.emplace_back(requests_, posted_for_any_, member);
  }
}

std::unique_ptr<Transport> SocketWire::duplicate() {
  return std::make_unique<SocketWire>(endpoint_, hash_in(hash_in(key_, 1), ++children_), members_);
}

std::unique_ptr<Transport> SocketWire::group(std::span<const int> members) {
  const std::vector<int> list(members.begin(), members.end());
  uint64_t key = hash_in(hash_in(key_, 2), ++groups_[list]);
  std::vector<int> of_world;
  for (int member : list) {
    key = hash_in(key, member);
    of_world.push_back(members_[member]);
  }
  return std::make_unique<SocketWire>(endpoint_, key, std::move(of_world));
}

/// In round k each rank hears from the one 2^k before it, so after ⌈log2 size⌉ rounds from all, at least by others. A
/// rank that misses one which has ended tells so in the next rounds. Who waits for it would name that rank otherwise.
bool SocketWire::ready() {
  const int size = std::ssize(members_);
  for (; ready_.distance < size; ready_.distance *= 2) {
    const int before = (rank_ + size - ready_.distance) % size, after = (rank_ + ready_.distance) % size;
    if (!ready_.is_under_way) begin_ready_round(before, after);
    const bool sent = ready_passed(ready_.requests[1], after);
    if (!ready_passed(ready_.requests[0], before) || !sent) return false;
    ready_.is_under_way = false;
    if (ready_.lost < 0) ready_.lost = ready_.heard;
  }
  if (ready_.lost >= 0) throw std::runtime_error(str("rank ", ready_.lost, " has ended"));
  return true;
}

void SocketWire::begin_ready_round(int before, int after) {
  ready_.is_under_way = true;
  ready_.heard = -1;
  ready_.said = ready_.lost;
  ready_.requests[0] = receive(before, kReadyTag, std::as_writable_bytes(std::span(&ready_.heard, 1)));
  try {
    ready_.requests[1] = send(after, kReadyTag, std::as_bytes(std::span(&ready_.said, 1)));
  } catch (const std::runtime_error&) {
    ready_.lost = ready_.lost < 0 ? members_[after] : ready_.lost;
  }
}

bool SocketWire::ready_passed(Request& request, int peer) {
  require_own();
  try {
    if (test(request)) return true;
    if (!will_never_finish(request)) return false;
  } catch (const std::runtime_error&) {
    if (&request == ready_.requests.data()) throw;  // else the rank that it was for is out of reach
  }
  request = {};
  ready_.lost = ready_.lost < 0 ? members_[peer] : ready_.lost;
  return true;
}

// ---- requests

void SocketWire::require_own() const {
  if (endpoint_->inherited())
    throw std::runtime_error("this process is a child of fork(), and the connections are its parent's");
}

void SocketWire::require_life() const {
  require_own();
  if (dead_) throw std::runtime_error("its communicator is dead");
}

Request SocketWire::send(int peer, Tag tag, std::span<const std::byte> bytes) {
  require_life();
  const int slot = requests_.take();
  if (peer == rank_) {
    incoming_[rank_].deliver(number_of(tag), bytes);
    requests_.finish(slot);
    return {slot, peer};
  }
  outgoing_[peer].add(slot, number_of(tag), bytes);
  ++unsent_;
  progress_sends(outgoing_[peer]);
  return {slot, peer};
}

Request SocketWire::receive(int peer, Tag tag, std::span<std::byte> bytes) {
  require_life();
  const int slot = requests_.take(bytes);
  if (peer != kAnyRank) {
    if (!incoming_[peer].take_aside(number_of(tag), slot)) incoming_[peer].post(number_of(tag), slot);
    return {slot, peer};
  }
  for (IncomingStream& stream : incoming_)
    if (stream.take_aside(number_of(tag), slot)) return {slot, peer};
  posted_for_any_.add(number_of(tag), slot);
  return {slot, peer};
}

bool SocketWire::test(Request& request) {
  if (!request.active()) return true;
  require_life();
  if (unsent_ > 0 && !requests_.is_done(request.slot)) progress_sends();
  if (!requests_.is_done(request.slot)) progress_receives(request);
  if (!requests_.is_done(request.slot)) return false;
  const std::string error = requests_.release(request.slot);
  polls_.found();
  request = {};
  if (!error.empty()) throw std::runtime_error(error);
  return true;
}

bool SocketWire::will_never_finish(const Request& request) {
  return request.active() && request.peer != kAnyRank && !requests_.is_done(request.slot) &&
         incoming_[request.peer].has_ended();
}

void SocketWire::abandon() noexcept {
  dead_ = true;
  for (OutgoingStream& stream : outgoing_) stream.abandon();
  for (IncomingStream& stream : incoming_) stream.abandon();
  posted_for_any_.clear();
  unsent_ = 0;
}

// ---- streams

void SocketWire::progress_sends() {
  for (OutgoingStream& stream : outgoing_)
    if (stream.unsent() > 0) progress_sends(stream);
}

void SocketWire::progress_sends(OutgoingStream& stream) {
  unsent_ -= stream.unsent();
  stream.progress();
  unsent_ += stream.unsent();
}

void SocketWire::progress_receives(const Request& request) {
  const bool looks_for_connections = polls_.count() % kPollsBetweenLooks == 0;
  if (request.peer == kAnyRank) {
    if (looks_for_connections) take_connections();
    for (IncomingStream& stream : incoming_) stream.progress();
  } else if (request.peer != rank_) {
    IncomingStream& stream = incoming_[request.peer];
    if (looks_for_connections && !stream.is_open() && !stream.has_ended()) take_connections();
    stream.progress();
  }
}

void SocketWire::take_connections() {
  endpoint_->progress();
  for (auto& [rank, socket] : endpoint_->take(key_)) {
    const int place = place_of(rank, members_);
    if (place < std::ssize(incoming_)) incoming_[place].open(std::move(socket));
  }
  for (size_t i = 0; i < incoming_.size(); ++i) {
    IncomingStream& stream = incoming_[i];
    const bool misses_one = !stream.is_open() && !stream.has_ended() && stream.has_posted();
    if (misses_one && endpoint_->gone(members_[i])) stream.miss_connection();
  }
}

// ---- waiting

void SocketWire::idle(std::chrono::steady_clock::time_point until) {
  if (!polls_.yield()) poll_descriptors(std::min(until, Clock::now() + kMaxSleep));
}

void SocketWire::poll_descriptors(std::chrono::steady_clock::time_point until) {
  polled_.clear();
  bool connections_missing = !posted_for_any_.empty();
  for (const IncomingStream& stream : incoming_) {
    if (stream.is_open() && stream.is_awaited()) polled_.push_back({stream.fd(), POLLIN, 0});
    connections_missing |= !stream.is_open() && stream.has_posted();
  }
  for (const OutgoingStream& stream : outgoing_)
    if (stream.fd() >= 0 && stream.unsent() > 0) polled_.push_back({stream.fd(), POLLOUT, 0});
  if (connections_missing) polled_.push_back({endpoint_->events(), POLLIN, 0});
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  const timespec timeout{.tv_sec = 0,
                         .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  if (ppoll(polled_.data(), polled_.size(), &timeout, nullptr) <= 0) return;
  if (connections_missing) take_connections();
  // Also what is not waited for yet: were it left, the next sleep would end at once.
  for (IncomingStream& stream : incoming_) stream.progress();
}

}  // namespace spillway::ddl
