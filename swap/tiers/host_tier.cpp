#include "swap/tiers/host_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "swap/tiers/host_copy_state.h"

namespace spillway::swap {
namespace {
/// The number of copies that come back from disk ahead of their use at once: enough to keep the disk busy.
constexpr int kRecallsAtOnce = 2;

/// Bytes that read as zero and take no memory.
class Zeros {
 public:
  explicit Zeros(int64_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "[host tier] mmap");
  }
  ~Zeros() { ::munmap(data_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  const void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};
}  // namespace

void HostCopy::reset() noexcept {
  if (auto state = std::move(state_)) state->tier.drop(*state);
}

HostTier::Pin::Pin(HostTier& tier, State& copy) : tier_(tier), copy_(copy) {
  std::lock_guard lock(tier_.mutex_);
  ++copy_.pins;
}

HostTier::Pin::~Pin() {
  std::lock_guard lock(tier_.mutex_);
  --copy_.pins;
  tier_.start_waiting();
}

HostTier::~HostTier() {
  std::unique_lock lock(mutex_);
  wait_for_pending();
  changed_.wait(lock, [&] { return moving_ == 0; });
}

HostCopy HostTier::page_out(const void* device, int64_t bytes, PageUseTime use, Ticket& ticket) {
  HostCopy copy;  // outlives the lock, because letting go of it takes the lock if anything throws
  auto state = std::make_shared<State>(*this, bytes, use);
  std::lock_guard lock(mutex_);
  copies_.insert(state.get());
  copy.state_ = state;
  // Nothing may fail once a copy has been submitted, because that copy uses the room.
  if (!disk_) {
    state->block = take(bytes);
    if (!state->block && !pending_.empty()) {
      wait_for_pending();
      state->block = take(bytes);
    }
    if (!state->block) state->block = own(slab_.allocate(bytes), bytes);
    state->enter(HostCopyState::in_slab);
    ticket = state->filled = state->device = out_.copy(state->block->data, device, bytes);
  } else {
    TicketSource source;
    Ticket arrival = source.ticket();
    waiting_.push_back({state, device, std::move(source)});
    waiting_bytes_ += bytes;
    ticket = state->filled = state->device = std::move(arrival);
    start_waiting();
  }
  return copy;
}

HostCopy HostTier::make(int64_t bytes, PageUseTime use) {
  {
    std::lock_guard lock(mutex_);
    if (auto block = waiting_.empty() ? take(bytes) : nullptr) {
      auto state = std::make_shared<State>(*this, bytes, use);
      state->block = std::move(block);
      state->enter(HostCopyState::in_slab);
      copies_.insert(state.get());
      HostCopy copy;
      copy.state_ = std::move(state);
      return copy;
    }
  }
  // Zeros take the way that every page takes when the slab is full.
  const Zeros zeros(bytes);
  Ticket arrival;
  HostCopy copy = page_out(zeros.data(), bytes, use, arrival);
  arrival.wait();
  return copy;
}

Ticket HostTier::page_in(HostCopy& copy, void* device) {
  State& state = *copy.state_;
  std::lock_guard lock(mutex_);
  if (state.block) {
    state.device = in_.copy(device, state.block->data, state.bytes);
  } else if (state.is_moving()) {
    state.wanted = {device, {}};
    state.device = state.wanted->source.ticket();
  } else {
    state.device = disk_->read(state.disk, {device, &in_});
  }
  state.is_last_copy = false;
  prefetch_from_disk();
  return state.device;
}

void HostTier::mark_last_copy(HostCopy& copy, PageUseTime use) {
  std::lock_guard lock(mutex_);
  copy.state_->is_last_copy = true;
  copy.state_->use = use;
}

bool HostTier::has_room(int64_t bytes) const {
  std::lock_guard lock(mutex_);
  return waiting_.empty() && slab_.fits(bytes);  // room of copies under way does not count; they end soon
}

int64_t HostTier::free_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = slab_.capacity_bytes() - slab_.used_bytes();
  for (const PendingFree& fading : pending_) bytes += fading.block->bytes;
  return bytes;
}

bool HostTier::in_slab(const HostCopy& copy) const {
  std::lock_guard lock(mutex_);
  return copy.state_->block != nullptr;
}

LaneTotals HostTier::copied() const {
  const DiskStats disk = disk_ ? disk_->stats() : DiskStats{};
  return {out_.totals(), in_.totals(), {disk.bytes_written, disk.write_seconds}, {disk.bytes_read, disk.read_seconds}};
}

void HostTier::read(const HostCopy& copy, int64_t begin, int64_t bytes, void* to) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::wait);
  const Place place = place_to_read(state);
  if (place.block)
    std::memcpy(to, static_cast<const char*>(place.block->data) + begin, bytes);
  else
    disk_->read_range(place.disk, begin, bytes, to);
}

void HostTier::write(HostCopy& copy, int64_t begin, int64_t bytes, const void* from) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  settle(state, &Ticket::wait);
  const Place place = place_to_write(state);
  if (place.block)
    std::memcpy(static_cast<char*>(place.block->data) + begin, from, bytes);
  else
    disk_->write_range(place.disk, begin, bytes, from);
}

/// Orders the caller's next action behind the copy's last page-out, page-in or window. Throws the error with which the
/// bytes failed to arrive; a page-in that failed has left them as they are.
void HostTier::settle(const State& copy, void (Ticket::*how)() const) {
  Ticket device, filled;
  {
    std::lock_guard lock(mutex_);
    device = copy.device;
    filled = copy.filled;
  }
  try {
    (device.*how)();
  } catch (...) {
  }
  (filled.*how)();
}

HostTier::Place HostTier::place_to_read(const State& copy) {
  std::lock_guard lock(mutex_);
  return {copy.block, copy.disk};
}

/// Returns the place to write to. Bytes on disk besides the slab's are old from here on.
HostTier::Place HostTier::place_to_write(State& copy) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !copy.is_moving(); });
  Place place{copy.block, copy.disk};
  if (place.block) {
    copy.disk.reset();
    if (copy.is(HostCopyState::in_both)) copy.enter(HostCopyState::in_slab);
  }
  return place;
}

// --- everything below runs under the lock, or takes it on the disk's thread -----------------------------------------

/// Frees the room of copies that are done.
void HostTier::reap() noexcept {
  std::erase_if(pending_, [](const PendingFree& fading) { return fading.copy.done(); });
}

void HostTier::wait_for_pending() {
  for (const PendingFree& fading : pending_) try {
      fading.copy.wait();
    } catch (...) {  // the bytes are no longer wanted
    }
  pending_.clear();
}

std::shared_ptr<SlabBlock> HostTier::take(int64_t bytes) {
  reap();
  void* data = slab_.try_allocate(bytes);
  return data ? own(data, bytes) : nullptr;
}

std::shared_ptr<SlabBlock> HostTier::own(void* data, int64_t bytes) {
  try {
    return std::make_shared<Block>(slab_, data, bytes);
  } catch (...) {
    slab_.deallocate(data, bytes);
    throw;
  }
}

/// Returns the copy in the slab that is needed last, of those that are not in use now.
HostTier::State* HostTier::eviction_candidate() {
  State* last = nullptr;
  for (State* copy : copies_)
    if (copy->block && copy->idle() && (!last || last->use.sooner_than(copy->use))) last = copy;
  return last;
}

/// Starts page-outs that wait for room, as far as there is some, and makes more.
void HostTier::start_waiting() noexcept {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    try {
      if (!try_start(first)) return;
    } catch (...) {
      if (first.copy->is(HostCopyState::waiting)) first.copy->enter(HostCopyState::lost);
      first.source.complete(std::current_exception());
    }
    waiting_bytes_ -= first.copy->bytes;
    waiting_.pop_front();
  }
}

/// Tries to start a page-out. Returns true once it is on its way, and false when it must wait for copies that are
/// leaving.
bool HostTier::try_start(Waiting& waiting) {
  State& copy = *waiting.copy;
  for (;;) {
    if ((copy.block = take(copy.bytes))) {
      copy.enter(HostCopyState::in_slab);
      waiting.source.chain_to(out_.copy(copy.block->data, waiting.device, copy.bytes));
      return true;
    }
    if (leaving_bytes_ >= waiting_bytes_) return false;
    State* last = eviction_candidate();
    if (last && copy.use.sooner_than(last->use)) {
      if (last->is(HostCopyState::in_both))
        leave_slab(*last);
      else
        spill(*last);
    } else if (!last && leaving_bytes_ > 0) {
      return false;
    } else {
      write_through(waiting);  // it is needed later than all copies that could leave for it
      return true;
    }
  }
}

/// Writes from the device to the disk, through the slab's staging buffers alone.
void HostTier::write_through(Waiting& waiting) {
  State& copy = *waiting.copy;
  copy.disk = disk_->make_page(copy.bytes);
  Ticket written = disk_->write(copy.disk, {const_cast<void*>(waiting.device), &out_},
                                [this, state = waiting.copy](const std::exception_ptr& error) {
                                  std::lock_guard lock(mutex_);
                                  state->enter(error ? HostCopyState::lost : HostCopyState::on_disk);
                                  --moving_;
                                  start_waiting();
                                  changed_.notify_all();
                                });
  copy.enter(HostCopyState::writing);
  ++moving_;
  waiting.source.chain_to(std::move(written));
}

void HostTier::spill(State& copy) {
  copy.disk = disk_->make_page(copy.bytes);
  (void)disk_->write(
      copy.disk, {copy.block->data, nullptr, copy.block},
      [this, state = copy.shared_from_this()](const std::exception_ptr& error) { spilled(*state, error); });
  copy.enter(HostCopyState::spilling);
  ++moving_;
  leaving_bytes_ += copy.bytes;
}

/// Frees the slab's room of a copy that is on disk as well.
void HostTier::leave_slab(State& copy) {
  copy.enter(HostCopyState::on_disk);
  copy.block.reset();
}

/// Ends a spill: the disk has a copy of the slab's bytes, or failed to take them. After a failure the copy stays in the
/// slab, and the page-out that waited for its room gets the error.
void HostTier::spilled(State& copy, const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  copy.enter(error ? HostCopyState::in_slab : HostCopyState::in_both);
  --moving_;
  leaving_bytes_ -= copy.bytes;
  if (error) copy.disk.reset();
  if (error && !waiting_.empty()) {
    waiting_.front().copy->enter(HostCopyState::lost);
    waiting_.front().source.complete(error);
    waiting_bytes_ -= waiting_.front().copy->bytes;
    waiting_.pop_front();
  }
  if (copy.is(HostCopyState::in_both) && !waiting_.empty() && copy.idle()) leave_slab(copy);
  start_waiting();
  changed_.notify_all();
}

/// Brings copies back from disk into free room, the soonest needed first. Does nothing while others leave for want of
/// room. A copy that cannot be brought back ahead comes when it is needed.
void HostTier::prefetch_from_disk() noexcept try {
  while (disk_ && waiting_.empty() && leaving_bytes_ == 0 && prefetches_ < kRecallsAtOnce) {
    State* next = nullptr;
    for (State* copy : copies_)
      if (copy->is_last_copy && copy->is(HostCopyState::on_disk) && copy->idle() &&
          copy->use.next_use != kNextUseUnknown && (!next || copy->use.sooner_than(next->use)))
        next = copy;
    auto block = next ? take(next->bytes) : nullptr;
    if (!block) return;
    (void)disk_->read(next->disk, {block->data, nullptr, block},
                      [this, state = next->shared_from_this(), block](const std::exception_ptr& error) mutable {
                        on_prefetched(*state, std::move(block), error);
                      });
    next->enter(HostCopyState::prefetching);
    ++moving_;
    ++prefetches_;
  }
} catch (...) {
}

void HostTier::on_prefetched(State& copy, std::shared_ptr<Block> block, const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  copy.enter(error ? HostCopyState::unreadable : HostCopyState::in_both);
  --moving_;
  --prefetches_;
  if (copy.is(HostCopyState::in_both)) copy.block = block;
  if (auto wanted = std::exchange(copy.wanted, std::nullopt)) {
    if (error)
      wanted->source.complete(error);
    else
      deliver(copy, block, wanted->device, wanted->source);
  }
  block.reset();
  start_waiting();
  prefetch_from_disk();
  changed_.notify_all();
}

/// Continues the page-in that waited for the bytes in `block`, also after the copy has been let go of.
void HostTier::deliver(const State& copy, const std::shared_ptr<Block>& block, void* device, TicketSource& source) {
  try {
    const bool dropped = copy.is(HostCopyState::dropped);
    if (dropped) pending_.reserve(pending_.size() + 1);
    Ticket arriving = in_.copy(device, block->data, copy.bytes);
    if (dropped) pending_.push_back({block, arriving});
    source.chain_to(std::move(arriving));
  } catch (...) {
    source.complete(std::current_exception());
  }
}

void HostTier::drop(State& copy) noexcept {
  std::lock_guard lock(mutex_);
  copies_.erase(&copy);
  copy.enter(HostCopyState::dropped);
  if (copy.block && !copy.device.done()) pending_.push_back({copy.block, copy.device});
  copy.block.reset();
  copy.disk.reset();
  start_waiting();
}

}  // namespace spillway::swap
