/// The count of one device's bytes by category, and the budget that limits it.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/bytes.h"
#include "core/category.h"

namespace spillway {

/// Counts the bytes of one device by category under one budget. The count never exceeds the budget, because a charge
/// that would exceed it is refused. A soft budget is exceeded only when raise_limit() asks for that, and peak_bytes()
/// then shows it. Thread-safe. used_bytes() costs a load, every other call one uncontended lock.
class Ledger {
 public:
  /// `device` is the name used in messages, e.g. "cpu".
  explicit Ledger(std::string device, int64_t budget_bytes = kUnlimitedBytes);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Adds `bytes` to `category`. Returns false, changing nothing, when the total would exceed the budget.
  [[nodiscard]] bool try_charge(int64_t bytes, Category category) noexcept;
  void refund(int64_t bytes, Category category) noexcept;
  /// Moves `bytes` between categories; the total does not change.
  void recategorize(int64_t bytes, Category from, Category to) noexcept;

  /// Sets the budget. Throws OutOfBudget when more than `bytes` is held already, unless it is `soft`. A soft budget may
  /// be exceeded after raise_limit().
  void set_budget(int64_t bytes, bool soft = false);
  /// Lets charges of `bytes` more than are held now succeed although they exceed a soft budget. Later refunds lower
  /// this limit again. Returns false, changing nothing, when the budget is hard.
  [[nodiscard]] bool raise_limit(int64_t bytes) noexcept;
  /// Returns the bytes that a charge may have now.
  int64_t available_bytes() const noexcept;

  int64_t budget_bytes() const noexcept;
  bool is_soft() const noexcept;
  int64_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }
  /// Returns the largest total since construction or reset_peak().
  int64_t peak_bytes() const noexcept;
  /// Returns the bytes of each category at the instant of the peak.
  BytesByCategory peak_by_category() const noexcept;
  BytesByCategory used_by_category() const noexcept;
  void reset_peak() noexcept;

  /// Starts a new measurement for workspace_since_mark(). That function returns by how much the workspace count has
  /// grown at most since the mark: the bytes that one operator's outputs and scratch memory needed at once.
  void mark_workspace() noexcept;
  int64_t workspace_since_mark() const noexcept;

  /// Keeps other threads out until unlock_after_fork(). Needed around fork(), because its child would wait forever for
  /// a lock that another thread held.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  const std::string& device() const noexcept { return device_; }

 private:
  const std::string device_;
  mutable std::mutex mutex_;
  int64_t budget_bytes_;
  int64_t limit_bytes_;  // the budget, or more while a soft one is exceeded
  bool soft_ = false;
  std::atomic<int64_t> used_bytes_ = 0;  // written under the lock
  int64_t peak_bytes_ = 0;
  int64_t workspace_at_mark_ = 0;
  int64_t workspace_peak_ = 0;
  BytesByCategory used_{};
  BytesByCategory at_peak_{};
};

}  // namespace spillway
