#include "swap/host_tier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "swap/host_tier_parts.h"

namespace spillway {
namespace {
/// Copies that come back from disk ahead of their use at once: enough to keep the disk busy.
constexpr int kRecallsAtOnce = 2;

/// Bytes that read as zero and take no memory.
class Zeros {
 public:
  explicit Zeros(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
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

HostTier::~HostTier() {
  std::unique_lock lock(mutex_);
  wait_for_fading();
  changed_.wait(lock, [&] { return moving_ == 0; });
}

HostCopy HostTier::page_out(const void* device, int64_t bytes, PageUseTime use, Ticket& ticket) {
  HostCopy copy;
  auto state = std::make_shared<State>(*this, bytes, use);
  std::lock_guard lock(mutex_);
  if (!disk_) {
    state->block = take(bytes);
    if (!state->block && !fading_.empty()) {
      wait_for_fading();
      state->block = take(bytes);
    }
    if (!state->block) state->block = std::make_shared<Block>(slab_, slab_.allocate(bytes), bytes);
    ticket = state->device = out_.copy(state->block->data, device, bytes);
  } else {
    TicketSource source;
    ticket = state->device = source.ticket();
    waiting_.push_back({state, device, std::move(source)});
    waiting_bytes_ += bytes;
    advance();
  }
  copies_.insert(state.get());
  copy.state_ = std::move(state);
  return copy;
}

HostCopy HostTier::make(int64_t bytes, PageUseTime use) {
  {
    std::lock_guard lock(mutex_);
    if (auto block = waiting_.empty() ? take(bytes) : nullptr) {
      HostCopy copy;
      copy.state_ = std::make_shared<State>(*this, bytes, use);
      copy.state_->block = std::move(block);
      copies_.insert(copy.state_.get());
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
  state.only = false;
  if (state.block) {
    state.device = in_.copy(device, state.block->data, state.bytes);
  } else if (state.moving) {
    state.wanted = {device, {}};
    state.device = state.wanted->source.ticket();
  } else {
    state.device = disk_->read(state.disk, {device, &in_});
  }
  recall();
  return state.device;
}

void HostTier::evicted(HostCopy& copy, PageUseTime use) {
  std::lock_guard lock(mutex_);
  copy.state_->only = true;
  copy.state_->use = use;
}

bool HostTier::has_room(int64_t bytes) const {
  std::lock_guard lock(mutex_);
  return waiting_.empty() && slab_.fits(bytes);  // without what is fading: copies that are under way end soon
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
  arrival(state).wait();
  const Place place = place_to_read(state);
  if (place.block)
    std::memcpy(to, static_cast<const char*>(place.block->data) + begin, static_cast<size_t>(bytes));
  else
    disk_->read_range(place.disk, begin, bytes, to);
}

void HostTier::write(HostCopy& copy, int64_t begin, int64_t bytes, const void* from) {
  State& state = *copy.state_;
  Pin pin(*this, state);
  arrival(state).wait();
  const Place place = place_to_write(state);
  if (place.block)
    std::memcpy(static_cast<char*>(place.block->data) + begin, from, static_cast<size_t>(bytes));
  else
    disk_->write_range(place.disk, begin, bytes, from);
}

/// Of the last page-out, page-in or window of the copy.
Ticket HostTier::arrival(const State& copy) {
  std::lock_guard lock(mutex_);
  return copy.device;
}

HostTier::Place HostTier::place_to_read(const State& copy) {
  std::lock_guard lock(mutex_);
  return {copy.block, copy.disk};
}

/// What the disk has besides the slab is old from here on.
HostTier::Place HostTier::place_to_write(State& copy) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !copy.moving; });
  Place place{copy.block, copy.disk};
  if (place.block) {
    copy.disk.reset();
    copy.stored = false;
  }
  return place;
}

// --- everything below runs under the lock, or takes it on the disk's thread -----------------------------------------

/// Frees the room of copies that are done.
void HostTier::reap() noexcept {
  std::erase_if(fading_, [](const Fading& fading) { return fading.copy.done(); });
}

void HostTier::wait_for_fading() {
  for (const Fading& fading : fading_) try {
      fading.copy.wait();
    } catch (...) {  // nobody wants the bytes
    }
  fading_.clear();
}

std::shared_ptr<HostTier::Block> HostTier::take(int64_t bytes) {
  reap();
  void* data = slab_.try_allocate(bytes);
  return data ? std::make_shared<Block>(slab_, data, bytes) : nullptr;
}

/// The copy in the slab that is needed last, of those that nobody uses now.
HostTier::State* HostTier::furthest() {
  State* last = nullptr;
  for (State* copy : copies_)
    if (copy->block && copy->idle() && (!last || last->use.sooner_than(copy->use))) last = copy;
  return last;
}

/// Lets page-outs that wait for room go on, as far as there is some, and makes more.
void HostTier::advance() noexcept {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    try {
      if (!admit(first)) return;
    } catch (...) {
      first.source.complete(std::current_exception());
    }
    waiting_bytes_ -= first.copy->bytes;
    waiting_.pop_front();
  }
}

/// True once the page-out is on its way; false when it must wait for copies that are leaving.
bool HostTier::admit(Waiting& waiting) {
  State& copy = *waiting.copy;
  for (;;) {
    if ((copy.block = take(copy.bytes))) {
      waiting.source.continue_as(out_.copy(copy.block->data, waiting.device, copy.bytes));
      return true;
    }
    if (leaving_bytes_ >= waiting_bytes_) return false;
    State* last = furthest();
    if (last && copy.use.sooner_than(last->use)) {
      if (last->stored)
        last->block.reset();
      else
        spill(*last);
    } else if (!last && leaving_bytes_ > 0) {
      return false;
    } else {
      write_through(waiting);  // it is needed later than all that could leave for it
      return true;
    }
  }
}

/// From the device to the disk; the slab's staging buffers are all it passes.
void HostTier::write_through(Waiting& waiting) {
  State& copy = *waiting.copy;
  copy.disk = disk_->make_page(copy.bytes);
  Ticket written = disk_->write(copy.disk, {const_cast<void*>(waiting.device), &out_},
                                [this, state = waiting.copy](std::exception_ptr error) {
                                  std::lock_guard lock(mutex_);
                                  state->moving = false;
                                  state->stored = !error;
                                  --moving_;
                                  advance();
                                  changed_.notify_all();
                                });
  copy.moving = true;
  ++moving_;
  waiting.source.continue_as(std::move(written));
}

void HostTier::spill(State& copy) {
  copy.disk = disk_->make_page(copy.bytes);
  (void)disk_->write(copy.disk, {copy.block->data, nullptr, copy.block},
                     [this, state = copy.shared_from_this()](std::exception_ptr error) { spilled(*state, error); });
  copy.moving = true;
  ++moving_;
  leaving_bytes_ += copy.bytes;
}

/// The disk has a copy of the slab's, or failed to take it: then it stays, and who waited for its room is told.
void HostTier::spilled(State& copy, std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  copy.moving = false;
  copy.stored = !error;
  --moving_;
  leaving_bytes_ -= copy.bytes;
  if (error) copy.disk.reset();
  if (error && !waiting_.empty()) {
    waiting_.front().source.complete(error);
    waiting_bytes_ -= waiting_.front().copy->bytes;
    waiting_.pop_front();
  }
  if (!error && !waiting_.empty() && copy.idle()) copy.block.reset();
  advance();
  changed_.notify_all();
}

/// Brings copies back from disk into free room, the soonest needed first. Not while others leave for want of room.
void HostTier::recall() {
  while (disk_ && waiting_.empty() && leaving_bytes_ == 0 && recalls_ < kRecallsAtOnce) {
    State* next = nullptr;
    for (State* copy : copies_)
      if (copy->only && copy->stored && !copy->block && !copy->unreadable && copy->idle() &&
          copy->use.next_use != kNextUseUnknown && (!next || copy->use.sooner_than(next->use)))
        next = copy;
    auto block = next ? take(next->bytes) : nullptr;
    if (!block) return;
    (void)disk_->read(next->disk, {block->data, nullptr, block},
                      [this, state = next->shared_from_this(), block](std::exception_ptr error) mutable {
                        recalled(*state, std::move(block), error);
                      });
    next->moving = true;
    ++moving_;
    ++recalls_;
  }
}

void HostTier::recalled(State& copy, std::shared_ptr<Block> block, std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  copy.moving = false;
  --moving_;
  --recalls_;
  copy.unreadable = error != nullptr;
  if (!error && !copy.dropped) copy.block = block;
  block.reset();
  if (auto wanted = std::exchange(copy.wanted, std::nullopt)) {
    if (error)
      wanted->source.complete(error);
    else
      wanted->source.continue_as(in_.copy(wanted->device, copy.block->data, copy.bytes));
  }
  advance();
  recall();
  changed_.notify_all();
}

void HostTier::drop(State& copy) noexcept {
  std::lock_guard lock(mutex_);
  copies_.erase(&copy);
  copy.dropped = true;
  if (copy.block && !copy.device.done()) fading_.push_back({copy.block, copy.device});
  copy.block.reset();
  copy.disk.reset();
  advance();
}

}  // namespace spillway
