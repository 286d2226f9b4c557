#include "core/memory/device_memory.h"

#include <algorithm>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/out_of_memory.h"

namespace spillway {

namespace {

/// Returns the name of this thread's operator, for messages.
std::string asker() {
  const auto name = OperatorScope::current();
  return name.empty() ? "an allocation" : std::string(name);
}

}  // namespace

/// Makes set_reclaimer() wait while it lives. So reclaimers and keepers that are loaded after its construction stay
/// valid.
struct DeviceMemory::Caller {
  explicit Caller(DeviceMemory& memory) : memory(memory) { ++memory.callers_; }
  ~Caller() { --memory.callers_; }
  DeviceMemory& memory;
};

/// Throws OutOfMemory for negative sizes and for sizes that no machine has, because the charge must not overflow.
void DeviceMemory::require_sane(int64_t bytes) {
  constexpr int64_t kMax = int64_t{1} << 62;
  if (bytes < 0 || bytes > kMax)
    throw OutOfMemory(str("[memory] ", asker(), " asks for ", bytes, " bytes, which no machine has"), bytes);
}

void DeviceMemory::set_reclaimer(Reclaimer* reclaimer) noexcept {
  reclaimer_ = reclaimer;
  while (callers_ > 0) std::this_thread::yield();
}

Block* ArenaBlocks::try_acquire(int64_t charge, Category category) {
  void* memory = arena_.try_allocate(charge);
  if (!memory) return nullptr;
  return new (memory) Block{static_cast<char*>(memory) + sizeof(Block), charge, nullptr, nullptr, category};
}

void ArenaBlocks::return_block(Block* block) noexcept {
  arena_.deallocate(block, block->charged_bytes);
}

Block* DeviceMemory::try_allocate(int64_t bytes, Category category) {
  require_sane(bytes);
  const int64_t charge = charge_of(bytes);
  if (!ledger_.try_charge(charge, category)) return nullptr;
  try {
    if (Block* block = source_.try_acquire(charge, category)) return block;
    throw OutOfMemory(
        str("[memory ", ledger_.device(), "] ", asker(), " needs ", format_bytes(charge),
            ", and the machine has no memory for it, although ", format_bytes(ledger_.used_bytes() - charge),
            " of a budget of ", format_bytes(ledger_.budget_bytes()), " are held"),
        charge);
  } catch (...) {
    ledger_.refund(charge, category);
    throw;
  }
}

Block* DeviceMemory::allocate(int64_t bytes, Category category) {
  require_sane(bytes);
  for (;;) {
    try {
      if (Block* block = try_allocate(bytes, category)) return block;
    } catch (const std::bad_alloc&) {
      Caller caller(*this);
      Reclaimer* reclaimer = reclaimer_;
      if (!reclaimer || !reclaimer->free_physical_memory(charge_of(bytes))) throw;
      continue;
    }
    ask_for(charge_of(bytes));
  }
}

void DeviceMemory::charge_external(int64_t bytes) {
  while (!ledger_.try_charge(bytes, Category::other)) ask_for(bytes);
  external_bytes_ += bytes;
}

void DeviceMemory::refund_external(int64_t bytes) noexcept {
  int64_t charged = external_bytes_;
  while (!external_bytes_.compare_exchange_weak(charged, charged - std::min(bytes, charged))) {
  }
  ledger_.refund(std::min(bytes, charged), Category::other);
}

void DeviceMemory::ask_for(int64_t charge) {
  Caller caller(*this);
  if (Reclaimer* reclaimer = reclaimer_) return reclaimer->reclaim(charge);
  throw OutOfBudget(str("[memory ", ledger_.device(), "] ", asker(), " needs ", format_bytes(charge), "; ",
                        format_bytes(ledger_.used_bytes()), " of ", format_bytes(ledger_.budget_bytes()),
                        " are held and no pager can make room"),
                    charge, ledger_.budget_bytes());
}

void DeviceMemory::release(Block* block) noexcept {
  if (!block->keeper) return free(block);
  if (orphaned_) return;
  Caller caller(*this);
  if (PageKeeper* keeper = block->keeper)
    keeper->on_block_released(block);
  else
    free(block);
}

void DeviceMemory::lock_for_fork() {
  ledger_.lock_for_fork();
  if (arena_) arena_->lock_for_fork();
}

void DeviceMemory::unlock_after_fork() {
  if (arena_) arena_->unlock_after_fork();
  ledger_.unlock_after_fork();
}

void DeviceMemory::orphan() noexcept {
  orphaned_ = true;
  reclaimer_ = nullptr;
  callers_ = 0;  // counts other threads, which the child does not have
  ledger_.set_budget(kUnlimitedBytes);
}

void DeviceMemory::free(Block* block) noexcept {
  // The bytes go back before their charge does. Otherwise another thread could take the charge while both hold memory.
  const int64_t charged_bytes = block->charged_bytes;
  const Category category = block->category;
  source_.return_block(block);
  ledger_.refund(charged_bytes, category);
}

bool DeviceMemory::try_recharge(Block* block, Category category) noexcept {
  if (!ledger_.try_charge(block->charged_bytes, category)) return false;
  block->category = category;
  return true;
}

void DeviceMemory::recategorize(Block* block, Category category) noexcept {
  if (block->category == category) return;
  ledger_.recategorize(block->charged_bytes, block->category, category);
  block->category = category;
}

}  // namespace spillway
