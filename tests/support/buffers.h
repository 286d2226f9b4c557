// A double of a storage: a buffer that a pager may empty and fill, without LibTorch.
#pragma once
#include <cstring>
#include <memory>

#include "swap/pager.h"

namespace spillway::testing {

class Buffer {
 public:
  Buffer(DeviceMemory& memory, Pager& pager, int64_t bytes, unsigned char value)
      : memory_(memory), pager_(pager), bytes_(bytes), self_(std::make_shared<Buffer*>(this)) {
    Block* block = memory.allocate(bytes, Category::other);
    data_ = block->data;
    fill(value);
    page_ = pager.add(block, bytes, std::make_unique<Owner>(self_));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_)
      memory_.release(Block::of(data_));
    else
      pager_.absent_owner_died(page_);
  }

  Page* page() const { return page_; }
  bool present() const { return data_ != nullptr; }
  void fill(unsigned char value) { std::memset(data_, value, static_cast<size_t>(bytes_)); }
  bool holds(unsigned char value) const {
    if (!data_) return false;
    const auto* bytes = static_cast<const unsigned char*>(data_);
    for (int64_t i = 0; i < bytes_; i += 251)
      if (bytes[i] != value) return false;
    return bytes[bytes_ - 1] == value;
  }

 private:
  class Owner final : public PageOwner {
   public:
    explicit Owner(std::shared_ptr<Buffer*> buffer) : buffer_(buffer) {}
    std::shared_ptr<void> keep_alive() override { return buffer_.lock(); }
    void vacate(Page&) override { (*buffer_.lock())->data_ = nullptr; }
    void occupy(Block* block) override { (*buffer_.lock())->data_ = block->data; }

   private:
    std::weak_ptr<Buffer*> buffer_;
  };

  DeviceMemory& memory_;
  Pager& pager_;
  const int64_t bytes_;
  std::shared_ptr<Buffer*> self_;
  void* data_ = nullptr;
  Page* page_ = nullptr;
};

}  // namespace spillway::testing
