/// A transport double whose messages leave and are noticed after random delays, to expose a missing wait or order.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl::testing {

/// A decorator of another transport. Sends start up to 300 µs late, each peer's in order, when the rank polls. A
/// receive may be noticed up to `latest_notice` late, whichever was posted first.
class DelayedTransport final : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> inner, unsigned seed,
                   std::chrono::microseconds latest_notice = std::chrono::microseconds(300))
      : inner_(std::move(inner)), random_(seed), latest_notice_(latest_notice) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }

  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    const auto start = std::max(later(std::chrono::microseconds(300)), last_start_);
    last_start_ = start;
    requests_.emplace_back();
    held_.push_back({start, peer, tag, bytes, static_cast<int>(requests_.size()) - 1});
    return {held_.back().slot, peer};
  }

  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    requests_.push_back({inner_->receive(peer, tag, bytes), true, later(latest_notice_)});
    return {static_cast<int>(requests_.size()) - 1, peer};
  }

  bool test(Request& request) override {
    release(Clock::now());
    if (!request.active()) return true;
    Started& inner = requests_[request.slot];
    if (!inner.started || !inner_->test(inner.request) || Clock::now() < inner.earliest_end) return false;
    request = {};
    return true;
  }

  bool will_never_finish(const Request& request) override {
    return request.active() && inner_->will_never_finish(requests_[request.slot].request);
  }
  bool ready() override { return inner_->ready(); }
  void idle(std::chrono::steady_clock::time_point until) override {
    inner_->idle(std::min(until, Clock::now() + std::chrono::microseconds(50)));
  }

  void abandon() noexcept override {
    held_.clear();
    inner_->abandon();
  }

  std::unique_ptr<Transport> duplicate() override {
    return std::make_unique<DelayedTransport>(inner_->duplicate(), static_cast<unsigned>(random_()), latest_notice_);
  }
  std::unique_ptr<Transport> group(std::span<const int> members) override {
    return std::make_unique<DelayedTransport>(inner_->group(members), static_cast<unsigned>(random_()), latest_notice_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Clock::time_point start;
    int peer;
    Tag tag;
    std::span<const std::byte> bytes;
    int slot;
  };
  struct Started {
    Request request;
    bool started = false;
    Clock::time_point earliest_end{};
  };

  Clock::time_point later(std::chrono::microseconds most) {
    return Clock::now() + std::chrono::microseconds(
                              std::uniform_int_distribution<std::chrono::microseconds::rep>(0, most.count())(random_));
  }

  void release(Clock::time_point now) {
    for (; !held_.empty() && held_.front().start <= now; held_.pop_front()) {
      const Held& held = held_.front();
      requests_[held.slot] = {inner_->send(held.peer, held.tag, held.bytes), true};
    }
  }

  std::unique_ptr<Transport> inner_;
  std::mt19937 random_;
  const std::chrono::microseconds latest_notice_;
  Clock::time_point last_start_{};
  std::deque<Held> held_;
  std::vector<Started> requests_;
};

}  // namespace spillway::ddl::testing
