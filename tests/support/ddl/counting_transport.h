/// A transport double that counts the bytes that it receives, by sender and by tag.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/ddl/forwarding_transport.h"

namespace spillway::ddl::testing {

/// The bytes that one rank has received. Thread-safe.
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

/// A decorator of another transport. It and its duplicates add to `received`, which outlives them.
class CountingTransport final : public ForwardingTransport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, ReceivedBytes& received)
      : ForwardingTransport(std::move(inner)), received_(received) {}
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    received_.add(peer, tag, bytes.size());
    return inner().receive(peer, tag, bytes);
  }
  std::unique_ptr<Transport> duplicate() override {
    return std::make_unique<CountingTransport>(inner().duplicate(), received_);
  }

 private:
  ReceivedBytes& received_;
};

}  // namespace spillway::ddl::testing
