/// Who holds how many bytes of one device, and the budget they share.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "core/bytes.h"
#include "core/category.h"

namespace spillway {

/// Counts the bytes of one device by category under one budget. The count never exceeds the budget: a charge that
/// would is refused. (A soft one is exceeded where raise_limit() asks for that, and peak_bytes() tells.) Thread-safe;
/// every call costs one uncontended lock.
class Ledger {
 public:
  /// `device` is the name used in messages, e.g. "cpu".
  explicit Ledger(std::string device, int64_t budget_bytes = kUnlimitedBytes);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Adds `bytes` to `category`. Returns false, changing nothing, when the total would exceed the budget.
  [[nodiscard]] bool try_charge(int64_t bytes, Category category) noexcept;
  void refund(int64_t bytes, Category category) noexcept;
  /// Moves `bytes` between categories; the total stays.
  void recategorize(int64_t bytes, Category from, Category to) noexcept;

  /// Sets the budget. Throws OutOfBudget when more is held already, unless it is `soft`: may be exceeded on request.
  void set_budget(int64_t bytes, bool soft = false);
  /// Under a soft budget: charges of `bytes` more than are held now will be let in although they exceed it, and what is
  /// given back narrows that again. False, changing nothing, under a hard one.
  [[nodiscard]] bool raise_limit(int64_t bytes) noexcept;
  /// What a charge may have now.
  int64_t available_bytes() const noexcept;

  int64_t budget_bytes() const noexcept;
  bool is_soft() const noexcept;
  int64_t used_bytes() const noexcept;
  /// The largest total since construction or reset_peak().
  int64_t peak_bytes() const noexcept;
  /// The categories at the instant of the peak.
  BytesByCategory peak_by_category() const noexcept;
  BytesByCategory used_by_category() const noexcept;
  void reset_peak() noexcept;

  /// Largest workspace count since the last mark_workspace(): what one operator's outputs and scratch needed at once.
  void mark_workspace() noexcept;
  int64_t workspace_since_mark() const noexcept;

  /// No other thread is inside between these two; for fork(), whose child would wait for it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  const std::string& device() const noexcept { return device_; }

 private:
  const std::string device_;
  mutable std::mutex mutex_;
  int64_t budget_bytes_;
  int64_t limit_bytes_;  // the budget, or more while a soft one is exceeded
  bool soft_ = false;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t workspace_at_mark_ = 0;
  int64_t workspace_peak_ = 0;
  BytesByCategory used_{};
  BytesByCategory at_peak_{};
};

}  // namespace spillway
