/// The order in which pages leave the device: the one rule of the pager and of the simulation that plans for it.
#pragma once
#include <cstdint>
#include <tuple>

#include "core/ids.h"

namespace spillway::swap {

/// The turn of a page to leave: by its next use, before all other pages, or only where nothing else makes room.
enum class EvictionPriority : uint8_t { by_use, first, last_resort };

/// A schedule's preference for a page: it leaves only when nothing else can, by its next use, or before all others.
enum class EvictionBias : int8_t { keep, neutral, first };

/// The properties of a page that decide its place in the order.
struct EvictionCandidate {
  int64_t charged_bytes = 0;
  int64_t next_use = kNextUseUnknown;  ///< operator clock
  int64_t last_use = 0;                ///< grows with each use
  EvictionPriority priority = EvictionPriority::by_use;
  EvictionBias bias = EvictionBias::neutral;
  bool is_clean = false;       ///< leaving costs no copy
  bool is_paging_out = false;  ///< its copy is under way already
};

/// Limits on the candidates that may leave at all.
struct EvictionLimits {
  int64_t used_after = -1;  ///< only pages that are next used after this; -1: any
  bool clean_only = false;
  bool also_last_resort = false;
};

/// The rule that the furthest next use leaves first (Belady 1966). Where next uses are equal or unknown, clean pages
/// leave first, then those on their way, then the least recently used. Small pages whose next use is unknown leave
/// after all others, because losses and metrics are read at any time. So do pages of fewer than `costly_bytes`: on a
/// GPU each copy takes the host some 20 µs, in which 1 MiB is copied, and CUDA makes the host wait for a copy of a few
/// bytes to the host.
class EvictionOrder {
 public:
  /// Makes an order in which pages charged fewer than `small_bytes` are small.
  explicit EvictionOrder(int64_t small_bytes, int64_t costly_bytes = 0)
      : small_bytes_(small_bytes), costly_bytes_(costly_bytes) {}

  bool may_leave(const EvictionCandidate& page, const EvictionLimits& limits) const noexcept {
    if (page.priority == EvictionPriority::last_resort && !limits.also_last_resort) return false;
    return next_use(page) > limits.used_after && (page.is_clean || !limits.clean_only);
  }
  bool leaves_before(const EvictionCandidate& page, const EvictionCandidate& other) const noexcept {
    return rank(page) > rank(other);
  }

 private:
  static int64_t next_use(const EvictionCandidate& page) noexcept {
    return page.priority == EvictionPriority::first ? kNextUseUnknown : page.next_use;
  }
  bool is_at_hand(const EvictionCandidate& page) const noexcept {
    if (page.priority != EvictionPriority::by_use) return false;
    return page.charged_bytes < (page.next_use == kNextUseUnknown ? small_bytes_ : costly_bytes_);
  }
  std::tuple<EvictionBias, bool, int64_t, bool, bool, int64_t> rank(const EvictionCandidate& page) const noexcept {
    return {page.bias, !is_at_hand(page), next_use(page), page.is_clean, page.is_paging_out, -page.last_use};
  }

  int64_t small_bytes_;
  int64_t costly_bytes_;
};

/// Finds the page that leaves first among the pages it is shown. `none` is no page's name.
template <class PageName>
class VictimSearch {
 public:
  VictimSearch(const EvictionOrder& order, const EvictionLimits& limits, PageName none)
      : order_(order), limits_(limits), none_(none), victim_(none) {}
  void consider(PageName page, const EvictionCandidate& candidate) {
    if (!order_.may_leave(candidate, limits_)) return;
    if (victim_ != none_ && !order_.leaves_before(candidate, best_)) return;
    victim_ = page;
    best_ = candidate;
  }
  /// Returns the page that leaves first; `none` when none may leave.
  PageName victim() const noexcept { return victim_; }

 private:
  const EvictionOrder& order_;
  const EvictionLimits limits_;
  const PageName none_;
  PageName victim_;
  EvictionCandidate best_;
};

}  // namespace spillway::swap
