/// A transport double on which a fault happens in the middle of a collective.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl::testing {

/// A decorator of another transport. Once armed, it calls `fault` before it posts a message with `tag`. Another message
/// of a reduction has come or gone by then, so that the ranks have agreed on the reduction.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, Tag tag, std::function<void()> fault)
      : inner_(std::move(inner)), tag_(tag), fault_(std::move(fault)) {}
  void arm() { armed_ = true; }

  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    strike(tag);
    return noted(inner_->send(peer, tag, bytes), tag);
  }
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    strike(tag);
    return noted(inner_->receive(peer, tag, bytes), tag);
  }
  bool test(Request& request) override {
    const int slot = request.slot;
    if (!inner_->test(request)) return false;
    if (slot >= 0 && armed_) ready_ = ready_ || tags_[static_cast<size_t>(slot)] == Tag::reduce;
    return true;
  }
  bool ready() override { return inner_->ready(); }
  void idle(std::chrono::steady_clock::time_point until) override { inner_->idle(until); }
  void abandon() noexcept override { inner_->abandon(); }
  /// Returns a duplicate without faults.
  std::unique_ptr<Transport> duplicate() override { return inner_->duplicate(); }
  std::unique_ptr<Transport> group(std::span<const int> members) override { return inner_->group(members); }

 private:
  Request noted(Request request, Tag tag) {
    if (request.slot >= static_cast<int>(tags_.size())) tags_.resize(static_cast<size_t>(request.slot) + 1);
    tags_[static_cast<size_t>(request.slot)] = tag;
    return request;
  }
  void strike(Tag tag) {
    if (!ready_ || tag != tag_) return;
    armed_ = ready_ = false;
    fault_();
  }

  std::unique_ptr<Transport> inner_;
  const Tag tag_;
  const std::function<void()> fault_;
  std::vector<Tag> tags_;  ///< tags of messages, by slot
  bool armed_ = false;
  bool ready_ = false;
};

}  // namespace spillway::ddl::testing
