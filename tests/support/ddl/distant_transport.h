/// A transport double on which messages from some ranks take longer than from others.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl::testing {

/// A decorator of another transport. A message from `peer` is noticed `distance(peer)` after it has come.
class DistantTransport final : public Transport {
 public:
  using Distance = std::function<std::chrono::microseconds(int peer)>;
  DistantTransport(std::unique_ptr<Transport> inner, Distance distance)
      : inner_(std::move(inner)), distance_(std::move(distance)) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }

  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return started(inner_->send(peer, tag, bytes), std::chrono::microseconds(0));
  }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    const auto distance = peer == kAnyRank ? std::chrono::microseconds(0) : distance_(peer);
    return started(inner_->receive(peer, tag, bytes), distance);
  }
  bool test(Request& request) override {
    if (!request.active()) return true;
    const auto found = requests_.find(request.slot);
    Started& started = found->second;
    if (started.inner.active() && inner_->test(started.inner)) started.noticed = Clock::now() + started.distance;
    if (started.inner.active() || Clock::now() < started.noticed) return false;
    requests_.erase(found);
    request = {};
    return true;
  }
  bool ready() override { return inner_->ready(); }
  void idle(std::chrono::steady_clock::time_point until) override {
    inner_->idle(std::min(until, Clock::now() + std::chrono::microseconds(50)));
  }
  void abandon() noexcept override { inner_->abandon(); }
  std::unique_ptr<Transport> duplicate() override {
    return std::make_unique<DistantTransport>(inner_->duplicate(), distance_);
  }
  std::unique_ptr<Transport> group(std::span<const int> members) override {
    return std::make_unique<DistantTransport>(
        inner_->group(members), [distance = distance_, own = std::vector<int>(members.begin(), members.end())](
                                    int peer) { return distance(own[static_cast<size_t>(peer)]); });
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Started {
    Request inner;
    std::chrono::microseconds distance;
    Clock::time_point noticed{};
  };

  Request started(Request inner, std::chrono::microseconds distance) {
    requests_[++last_] = {inner, distance};
    return {last_, inner.peer};
  }

  std::unique_ptr<Transport> inner_;
  const Distance distance_;
  std::map<int, Started> requests_;
  int last_ = 0;
};

}  // namespace spillway::ddl::testing
