#include "ddl/point_to_point/point_to_point.h"

#include <iterator>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {
namespace {

/// The tags below are those of collectives.
constexpr int kFirstTag = 64;
/// How long the thread sleeps at most before it looks for messages that were added meanwhile.
constexpr std::chrono::microseconds kLook{200};
/// How often it looks for ranks that have ended, and for deadlines.
constexpr std::chrono::milliseconds kCheck{10};
constexpr CollectivePosition kPosition{.collective = "send/recv", .unit = "message"};

Tag wire_tag(int tag) {
  if (tag < 0 || tag > PointToPoint::kMaxTag)
    throw BadRequest(str("[ddl] a message's tag is ", tag, "; allowed: 0 to ", PointToPoint::kMaxTag));
  return static_cast<Tag>(kFirstTag + tag);
}

}  // namespace

void WaitingSince::begin() noexcept {
  Clock::rep nobody = 0;
  since_.compare_exchange_strong(nobody, Clock::now().time_since_epoch().count());
}

std::optional<Clock::time_point> WaitingSince::time() const noexcept {
  const Clock::rep since = since_;
  return since == 0 ? std::nullopt : std::optional(Clock::time_point(Clock::duration(since)));
}

PointToPoint::PointToPoint(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)), thread_([this] { run(); }) {}

PointToPoint::~PointToPoint() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PointToPoint::set_deadline(std::chrono::milliseconds deadline) {
  comm_->set_deadline(deadline);
}

void PointToPoint::send(int peer, int tag, std::span<const std::byte> bytes, std::shared_ptr<WaitingSince> waiting,
                        Done done) {
  auto* data = const_cast<std::byte*>(bytes.data());  // NOLINT: one struct stands for both directions
  add({.outgoing = true,
       .peer = peer,
       .tag = wire_tag(tag),
       .bytes = {data, bytes.size()},
       .waiting = std::move(waiting),
       .done = std::move(done)});
}

void PointToPoint::receive(int peer, int tag, std::span<std::byte> bytes, std::shared_ptr<WaitingSince> waiting,
                           Done done) {
  add({.outgoing = false,
       .peer = peer,
       .tag = wire_tag(tag),
       .bytes = bytes,
       .waiting = std::move(waiting),
       .done = std::move(done)});
}

void PointToPoint::add(Message message) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(message));
  }
  changed_.notify_all();
}

bool PointToPoint::wait_for_messages() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || !added_.empty(); });
  return !added_.empty();
}

bool PointToPoint::is_ending() {
  const std::lock_guard lock(mutex_);
  return ending_;
}

bool PointToPoint::advance(std::vector<Message>& under_way) {
  {
    // All of them first, so that an error in starting one reaches the others too.
    const std::lock_guard lock(mutex_);
    under_way.reserve(under_way.size() + added_.size());
    std::move(added_.begin(), added_.end(), std::back_inserter(under_way));
    added_.clear();
  }
  for (Message& message : under_way) {
    if (std::exchange(message.started, true)) continue;
    message.request = message.outgoing ? comm_->send(message.peer, message.tag, message.bytes)
                                       : comm_->receive(message.peer, message.tag, message.bytes);
  }
  bool any = false;
  for (size_t i = 0; i < under_way.size();) {
    if (!comm_->test(under_way[i].request, kPosition)) {
      ++i;
      continue;
    }
    const Done done = std::move(under_way[i].done);
    under_way.erase(under_way.begin() + i);
    done(nullptr);
    any = true;
  }
  return any;
}

void PointToPoint::check(const std::vector<Message>& under_way) {
  const auto now = Clock::now();
  for (const Message& message : under_way)
    comm_->check_wait(message.request, message.waiting->time().value_or(now), kPosition);
}

void PointToPoint::run() {
  std::vector<Message> under_way;
  auto checked = Clock::now();
  while (true) {
    try {
      if (under_way.empty() && !wait_for_messages()) return;
      if (advance(under_way) || under_way.empty()) continue;
      if (is_ending()) comm_->fail("was interrupted with messages under way");
      const auto now = Clock::now();
      if (now - checked > kCheck) {
        checked = now;
        check(under_way);
      }
      comm_->idle(now + kLook);
    } catch (const std::exception& error) {
      // After this no message uses its memory. Where the error is a CommError the communicator is dead already.
      comm_->abandon(error.what());
      for (const Message& message : std::exchange(under_way, {})) message.done(std::current_exception());
      if (is_ending()) return;
    }
  }
}

}  // namespace spillway::ddl
