#include "core/ledger.h"

#include <algorithm>

#include "core/error.h"

namespace spillway {

Ledger::Ledger(std::string device, int64_t budget_bytes)
    : device_(std::move(device)), budget_bytes_(budget_bytes), limit_bytes_(budget_bytes) {}

bool Ledger::try_charge(int64_t bytes, Category category) noexcept {
  std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - used_bytes_) return false;
  used_bytes_ += bytes;
  used_[category] += bytes;
  if (used_bytes_ > peak_bytes_) {
    peak_bytes_ = used_bytes_;
    at_peak_ = used_;
  }
  workspace_peak_ = std::max(workspace_peak_, used_[Category::workspace]);
  return true;
}

void Ledger::refund(int64_t bytes, Category category) noexcept {
  std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  used_[category] -= bytes;
  limit_bytes_ = std::max(budget_bytes_, std::min(limit_bytes_, used_bytes()));
}

bool Ledger::raise_limit(int64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  if (soft_) limit_bytes_ = std::max(limit_bytes_, used_bytes_ + bytes);
  return soft_;
}

void Ledger::recategorize(int64_t bytes, Category from, Category to) noexcept {
  std::lock_guard lock(mutex_);
  used_[from] -= bytes;
  used_[to] += bytes;
}

void Ledger::set_budget(int64_t bytes, bool soft) {
  std::lock_guard lock(mutex_);
  if (used_bytes_ > bytes && !soft)
    throw OutOfBudget(str("[ledger ", device_, "] a budget of ", format_bytes(bytes), " is below the ",
                          format_bytes(used_bytes()), " already held"),
                      used_bytes(), bytes);
  budget_bytes_ = bytes;
  limit_bytes_ = std::max(bytes, used_bytes());
  soft_ = soft;
}

int64_t Ledger::available_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return limit_bytes_ - used_bytes_;
}

int64_t Ledger::budget_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return budget_bytes_;
}
bool Ledger::is_soft() const noexcept {
  std::lock_guard lock(mutex_);
  return soft_;
}
int64_t Ledger::peak_bytes() const noexcept {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}
BytesByCategory Ledger::peak_by_category() const noexcept {
  std::lock_guard lock(mutex_);
  return at_peak_;
}
BytesByCategory Ledger::used_by_category() const noexcept {
  std::lock_guard lock(mutex_);
  return used_;
}
void Ledger::reset_peak() noexcept {
  std::lock_guard lock(mutex_);
  peak_bytes_ = used_bytes_;
  at_peak_ = used_;
}
void Ledger::mark_workspace() noexcept {
  std::lock_guard lock(mutex_);
  workspace_at_mark_ = workspace_peak_ = used_[Category::workspace];
}
int64_t Ledger::workspace_since_mark() const noexcept {
  std::lock_guard lock(mutex_);
  return workspace_peak_ - workspace_at_mark_;
}

}  // namespace spillway
