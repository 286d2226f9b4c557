// A double of a storage: a buffer that a pager may empty and fill, without LibTorch.
#pragma once
#include <cstring>
#include <memory>

#include "swap/pager/pager.h"

namespace spillway::testing {
using namespace swap;

class Buffer {
 public:
  Buffer(DeviceMemory& memory, Pager& pager, int64_t bytes, unsigned char value)
      : state_(std::make_shared<State>(memory, pager)), bytes_(bytes) {
    Block* block = memory.allocate(bytes, Category::other);
    state_->data = block->data;
    fill(value);
    state_->page = pager.add(block, bytes, std::make_unique<Owner>(state_));
  }
  struct Absent {};
  /// Makes a buffer that is born on the host, without device bytes.
  Buffer(DeviceMemory& memory, Pager& pager, int64_t bytes, Absent)
      : state_(std::make_shared<State>(memory, pager)), bytes_(bytes) {
    state_->page = pager.add_absent(bytes, Category::other, std::make_unique<Owner>(state_));
  }

  Page* page() const { return state_->page; }
  bool present() const { return state_->data != nullptr; }
  int64_t bytes() const { return bytes_; }
  /// Returns the buffer's bytes, which are valid while the page is leased.
  void* data() const { return state_->data; }
  void fill(unsigned char value) { std::memset(state_->data, value, static_cast<size_t>(bytes_)); }
  bool holds(unsigned char value) const {
    if (!state_->data) return false;
    const auto* bytes = static_cast<const unsigned char*>(state_->data);
    for (int64_t i = 0; i < bytes_; i += 251)
      if (bytes[i] != value) return false;
    return bytes[bytes_ - 1] == value;
  }

 private:
  /// The part that a pager may keep alive for a moment. Like a storage, it ends on the thread that releases it last.
  struct State {
    State(DeviceMemory& memory, Pager& pager) : memory(memory), pager(pager) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (data)
        memory.release(Block::of(data));
      else if (page)
        pager.on_absent_owner_destroyed(page);
    }
    DeviceMemory& memory;
    Pager& pager;
    void* data = nullptr;
    Page* page = nullptr;
  };
  class Owner final : public PageOwner {
   public:
    explicit Owner(const std::shared_ptr<State>& state) : state_(state) {}
    std::shared_ptr<void> keep_alive() override { return state_.lock(); }
    void vacate(Page&) override { state_.lock()->data = nullptr; }
    void occupy(Block* block) override { state_.lock()->data = block->data; }

   private:
    std::weak_ptr<State> state_;
  };

  std::shared_ptr<State> state_;
  int64_t bytes_;
};

}  // namespace spillway::testing
