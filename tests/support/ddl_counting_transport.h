/// A double: a transport that counts the bytes that it receives, by who sent them and what they are for.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ddl/transport.h"

namespace spillway::ddl::testing {

/// What one rank has received. Thread-safe.
class ReceivedBytes {
 public:
  void add(int peer, Tag tag, size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[{peer, tag}] += static_cast<int64_t>(bytes);
  }
  std::map<Tag, int64_t> by_tag(const std::function<bool(int peer)>& counts = nullptr) const {
    const std::lock_guard lock(mutex_);
    std::map<Tag, int64_t> sums;
    for (const auto& [from, bytes] : bytes_)
      if (!counts || counts(from.first)) sums[from.second] += bytes;
    return sums;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int, Tag>, int64_t> bytes_;
};

/// Decorates another transport; it and its duplicates add to `received`, which outlives them.
class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, ReceivedBytes& received)
      : inner_(std::move(inner)), received_(received) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override { return inner_->send(peer, tag, bytes); }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    received_.add(peer, tag, bytes.size());
    return inner_->receive(peer, tag, bytes);
  }
  bool test(Request& request) override { return inner_->test(request); }
  bool ready() override { return inner_->ready(); }
  void idle(std::chrono::steady_clock::time_point until) override { inner_->idle(until); }
  void abandon() noexcept override { inner_->abandon(); }
  std::unique_ptr<Transport> duplicate() override {
    return std::make_unique<CountingTransport>(inner_->duplicate(), received_);
  }

 private:
  const std::unique_ptr<Transport> inner_;
  ReceivedBytes& received_;
};

}  // namespace spillway::ddl::testing
