/// A double: a transport that counts the bytes that it receives, by what they are for.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ddl/transport.h"

namespace spillway::ddl::testing {

/// Decorates another transport; adds to `received`, which outlives it.
class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, std::map<Tag, int64_t>& received)
      : inner_(std::move(inner)), received_(received) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override { return inner_->send(peer, tag, bytes); }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    received_[tag] += static_cast<int64_t>(bytes.size());
    return inner_->receive(peer, tag, bytes);
  }
  bool test(Request& request) override { return inner_->test(request); }
  void idle(std::chrono::steady_clock::time_point until) override { inner_->idle(until); }
  void abandon() noexcept override { inner_->abandon(); }
  /// Not counted.
  std::unique_ptr<Transport> duplicate() override { return inner_->duplicate(); }

 private:
  const std::unique_ptr<Transport> inner_;
  std::map<Tag, int64_t>& received_;
};

}  // namespace spillway::ddl::testing
