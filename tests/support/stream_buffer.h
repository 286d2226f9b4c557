// A double of a storage on a device with streams.
#pragma once
#include <memory>

#include "swap/pager/pager.h"

namespace spillway::testing {
using namespace swap;

/// The owner of a page. The host knows where the bytes are, and only operators see their values.
class StreamBuffer {
 public:
  StreamBuffer(DeviceMemory& memory, Pager& pager, int64_t bytes) : state_(std::make_shared<State>(memory, pager)) {
    state_->block = memory.allocate(bytes, Category::other);
    state_->page = pager.add(state_->block, bytes, std::make_unique<Owner>(state_));
  }
  Page* page() const { return state_->page; }
  unsigned char* data() const { return static_cast<unsigned char*>(state_->block->data); }
  unsigned char version = 0;

 private:
  struct State {
    State(DeviceMemory& memory, Pager& pager) : memory(memory), pager(pager) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (block)
        memory.release(block);
      else
        pager.on_absent_owner_destroyed(page);
    }
    DeviceMemory& memory;
    Pager& pager;
    Block* block = nullptr;
    Page* page = nullptr;
  };
  class Owner final : public PageOwner {
   public:
    explicit Owner(const std::shared_ptr<State>& state) : state_(state) {}
    std::shared_ptr<void> keep_alive() override { return state_.lock(); }
    void vacate(Page&) override { state_.lock()->block = nullptr; }
    void occupy(Block* block) override { state_.lock()->block = block; }

   private:
    std::weak_ptr<State> state_;
  };
  std::shared_ptr<State> state_;
};

}  // namespace spillway::testing
