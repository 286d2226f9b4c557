/// The memory of a simulated device: its bytes, and the slots that are resident.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace spillway::swap {

/// The bytes that a simulated step holds, and their budget.
class SimulatedMemory {
 public:
  explicit SimulatedMemory(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  int64_t used_bytes() const noexcept { return paged_bytes_ + unpaged_bytes_; }
  bool fits(int64_t bytes) const noexcept { return used_bytes() + bytes <= budget_bytes_; }
  /// Returns the most bytes that were noted.
  int64_t peak_bytes() const noexcept { return peak_bytes_; }
  void note_peak(int64_t bytes) noexcept { peak_bytes_ = std::max(peak_bytes_, bytes); }
  void set_unpaged(int64_t bytes) noexcept { unpaged_bytes_ = bytes; }
  void charge(int64_t bytes) noexcept { paged_bytes_ += bytes; }
  void free(int64_t bytes) noexcept { paged_bytes_ -= bytes; }
  /// Frees bytes once a copy that uses them has ended.
  void free_after(double copy_end, int64_t bytes) { pending_frees_.emplace_back(copy_end, bytes); }
  void free_completed(double now) {
    std::erase_if(pending_frees_, [&](const auto& pending) {
      if (pending.first > now) return false;
      free(pending.second);
      return true;
    });
  }
  /// Returns the end of the copy that holds the bytes which died first; nothing where none does.
  std::optional<double> pending_free() const {
    return pending_frees_.empty() ? std::nullopt : std::optional(pending_frees_.front().first);
  }

 private:
  const int64_t budget_bytes_;
  int64_t paged_bytes_ = 0, unpaged_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<std::pair<double, int64_t>> pending_frees_;  // end of the copy, bytes
};

/// The resident slots, in the order in which they became resident.
class ResidentSlots {
 public:
  explicit ResidentSlots(size_t slots) : place_(slots, kNone) {}

  void add(int32_t slot) {
    place_[slot] = std::ssize(order_);
    order_.push_back(slot);
  }
  /// Removes a slot if it is there. The places of those that went are closed up now and then.
  void remove(int32_t slot) {
    const int64_t at = std::exchange(place_[slot], kNone);
    if (at == kNone) return;
    order_[at] = kNone;
    if (++removed_ * 2 < std::ssize(order_)) return;
    std::erase(order_, kNone);
    removed_ = 0;
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = i;
  }
  void for_each(auto&& visit) const {
    for (const int32_t slot : order_)
      if (slot != kNone) visit(slot);
  }

 private:
  static constexpr int32_t kNone = -1;

  std::vector<int32_t> order_;  // with kNone where a slot was removed
  std::vector<int64_t> place_;  // by slot: its place in the order
  int64_t removed_ = 0;
};

}  // namespace spillway::swap
