/// A base of transport doubles, which does as another transport does.
#pragma once
#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl::testing {

/// A transport that forwards every call to `inner`. A double overrides the calls that it changes. It also overrides
/// duplicate(), which wraps the inner transport's duplicate in a double of its own kind.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override { return inner_->send(peer, tag, bytes); }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override { return inner_->receive(peer, tag, bytes); }
  bool test(Request& request) override { return inner_->test(request); }
  bool will_never_finish(const Request& request) override { return inner_->will_never_finish(request); }
  bool ready() override { return inner_->ready(); }
  void idle(std::chrono::steady_clock::time_point until) override { inner_->idle(until); }
  void abandon() noexcept override { inner_->abandon(); }
  std::unique_ptr<Transport> group(std::span<const int> members) override { return inner_->group(members); }

 protected:
  Transport& inner() { return *inner_; }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace spillway::ddl::testing
