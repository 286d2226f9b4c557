/// The messages of a wire: their header, and the requests of those who send and receive them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace spillway::ddl {

/// The bytes before each message, on its connection.
struct MessageHeader {
  int64_t tag = 0;
  uint64_t size = 0;
};

/// The states of a wire's requests. A slot is a request's from take() to release().
class WireRequests {
 public:
  /// Takes a slot. `bytes` is the memory of a receive.
  int take(std::span<std::byte> bytes = {}) {
    if (free_.empty()) free_.push_back(add_slot());
    const int slot = free_.back();
    free_.pop_back();
    slots_[slot] = {.bytes = bytes};
    return slot;
  }
  void finish(int slot, std::string error = {}) {
    slots_[slot].is_done = true;
    slots_[slot].error = std::move(error);
  }
  /// Ends a receive because a message of another size came.
  void refuse(int slot, uint64_t came_bytes) {
    finish(slot, str(came_bytes, " bytes came where ", slots_[slot].bytes.size(), " were expected"));
  }
  /// Gives a whole message to a receive.
  void deliver(int slot, std::span<const std::byte> bytes) {
    if (slots_[slot].bytes.size() != bytes.size()) return refuse(slot, bytes.size());
    std::copy(bytes.begin(), bytes.end(), slots_[slot].bytes.begin());
    finish(slot);
  }
  bool is_done(int slot) const { return slots_[slot].is_done; }
  std::span<std::byte> bytes(int slot) const { return slots_[slot].bytes; }
  /// Gives back the slot of a request that is done. Returns its error; empty: none.
  std::string release(int slot) {
    free_.push_back(slot);
    return std::move(slots_[slot].error);
  }

 private:
  struct Slot {
    bool is_done = false;
    std::string error = {};
    std::span<std::byte> bytes = {};
  };
  int add_slot() {
    slots_.emplace_back();
    return std::ssize(slots_) - 1;
  }

  std::vector<Slot> slots_;
  std::vector<int> free_;
};

/// The receives that wait for a message, in their order.
class PostedReceives {
 public:
  static constexpr int kNone = -1;

  void add(int64_t tag, int slot) { posted_.push_back({tag, slot}); }
  /// Takes the first receive of a tag, and returns its slot; kNone where there is none.
  int take(int64_t tag) {
    const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const Posted& p) { return p.tag == tag; });
    if (found == posted_.end()) return kNone;
    const int slot = found->slot;
    posted_.erase(found);
    return slot;
  }
  bool empty() const noexcept { return posted_.empty(); }
  void clear() noexcept { posted_.clear(); }

 private:
  struct Posted {
    int64_t tag;
    int slot;
  };
  std::deque<Posted> posted_;
};

}  // namespace spillway::ddl
