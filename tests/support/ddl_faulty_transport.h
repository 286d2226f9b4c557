/// A double: a transport on which something happens in the middle of a collective.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddl/transport.h"

namespace spillway::ddl::testing {

/// Decorates another transport. Once armed, calls `fault` before the first message with `tag` is sent or received.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, Tag tag, std::function<void()> fault)
      : inner_(std::move(inner)), tag_(tag), fault_(std::move(fault)) {}
  void arm() { armed_ = true; }

  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    strike(tag);
    return inner_->send(peer, tag, bytes);
  }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    strike(tag);
    return inner_->receive(peer, tag, bytes);
  }
  bool test(Request& request) override { return inner_->test(request); }
  void idle(std::chrono::steady_clock::time_point until) override { inner_->idle(until); }
  void abandon() noexcept override { inner_->abandon(); }
  /// Without faults.
  std::unique_ptr<Transport> duplicate() override { return inner_->duplicate(); }

 private:
  void strike(Tag tag) {
    if (armed_ && tag == tag_) {
      armed_ = false;
      fault_();
    }
  }

  std::unique_ptr<Transport> inner_;
  const Tag tag_;
  const std::function<void()> fault_;
  bool armed_ = false;
};

}  // namespace spillway::ddl::testing
