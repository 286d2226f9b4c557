/// A double: a transport whose messages leave after a random delay, to expose a missing wait.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "ddl/transport.h"

namespace spillway::ddl::testing {

/// Decorates another transport. Sends start up to 300 µs late, each peer's in order, when the rank polls; receives are
/// untouched.
class DelayedTransport final : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> inner, unsigned seed) : inner_(std::move(inner)), random_(seed) {}
  std::string_view name() const override { return "delayed"; }
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }

  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    const auto delay = std::chrono::microseconds(std::uniform_int_distribution<int>(0, 300)(random_));
    const auto start = std::max(Clock::now() + delay, last_start_);
    last_start_ = start;
    requests_.emplace_back();
    held_.push_back({start, peer, tag, bytes, static_cast<int>(requests_.size()) - 1});
    return {held_.back().slot, peer};
  }

  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    requests_.push_back({inner_->receive(peer, tag, bytes), true});
    return {static_cast<int>(requests_.size()) - 1, peer};
  }

  bool test(Request& request) override {
    release(Clock::now());
    if (!request.active()) return true;
    Started& inner = requests_[request.slot];
    if (!inner.started || !inner_->test(inner.request)) return false;
    request = {};
    return true;
  }

  void idle(std::chrono::steady_clock::time_point until) override {
    inner_->idle(held_.empty() ? until : std::min(until, held_.front().start));
  }

  void abandon() noexcept override {
    held_.clear();
    inner_->abandon();
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
  };

  void release(Clock::time_point now) {
    for (; !held_.empty() && held_.front().start <= now; held_.pop_front()) {
      const Held& held = held_.front();
      requests_[held.slot] = {inner_->send(held.peer, held.tag, held.bytes), true};
    }
  }

  std::unique_ptr<Transport> inner_;
  std::mt19937 random_;
  Clock::time_point last_start_{};
  std::deque<Held> held_;
  std::vector<Started> requests_;
};

}  // namespace spillway::ddl::testing
