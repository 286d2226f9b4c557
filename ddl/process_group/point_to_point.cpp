#include "ddl/process_group/point_to_point.h"

#include <utility>

#include "core/clock.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {
namespace {

/// The tags below are those of collectives.
constexpr int kFirstTag = 64;
/// How long the thread sleeps at most before it looks for messages that were added meanwhile.
constexpr std::chrono::microseconds kLook{200};
constexpr CollectivePosition kPosition{.collective = "send/recv", .unit = "message"};

Tag wire_tag(int tag) {
  return static_cast<Tag>(kFirstTag + tag);
}

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)), thread_([this] { run(); }) {}

PointToPoint::~PointToPoint() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PointToPoint::send(int peer, int tag, std::span<const std::byte> bytes, Done done) {
  auto* data = const_cast<std::byte*>(bytes.data());  // NOLINT: one struct stands for both directions
  add({.outgoing = true,
       .peer = peer,
       .tag = wire_tag(tag),
       .bytes = {data, bytes.size()},
       .done = std::move(done),
       .start = Clock::now()});
}

void PointToPoint::receive(int peer, int tag, std::span<std::byte> bytes, Done done) {
  add({.outgoing = false,
       .peer = peer,
       .tag = wire_tag(tag),
       .bytes = bytes,
       .done = std::move(done),
       .start = Clock::now()});
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
  std::vector<Message> added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
  }
  for (Message& message : added) {
    under_way.push_back(std::move(message));  // before the start, so that an error reaches it too
    Message& started = under_way.back();
    started.request = started.outgoing ? comm_->send(started.peer, started.tag, started.bytes)
                                       : comm_->receive(started.peer, started.tag, started.bytes);
  }
  bool any = false;
  for (size_t i = 0; i < under_way.size();) {
    if (!comm_->test(under_way[i].request, kPosition)) {
      ++i;
      continue;
    }
    const Done done = std::move(under_way[i].done);
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(i));
    done(nullptr);
    any = true;
  }
  return any;
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
      if (now - checked > std::chrono::milliseconds(10)) {
        checked = now;
        for (const Message& message : under_way) comm_->check_wait(message.request, message.start, kPosition);
      }
      comm_->idle(now + kLook);
    } catch (...) {
      for (const Message& message : std::exchange(under_way, {})) message.done(std::current_exception());
      if (is_ending()) return;
    }
  }
}

}  // namespace spillway::ddl
