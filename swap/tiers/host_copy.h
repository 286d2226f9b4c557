/// A page's bytes in the host tier.
#pragma once
#include <memory>
#include <utility>

namespace spillway::swap {

class HostTier;

/// The bytes of one page in the host tier, wherever they are there. When this object is reset, they are forgotten. A
/// page-out or page-in under way keeps their room until it is done.
class HostCopy {
 public:
  HostCopy() = default;
  HostCopy(HostCopy&& other) noexcept = default;
  HostCopy& operator=(HostCopy&& other) noexcept {
    reset();
    state_ = std::move(other.state_);
    return *this;
  }
  ~HostCopy() { reset(); }
  void reset() noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct State;

 private:
  friend class HostTier;
  std::shared_ptr<State> state_;
};

}  // namespace spillway::swap
