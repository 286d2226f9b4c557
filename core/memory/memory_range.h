/// A range of addresses and how it is given back: what an arena stands on.
#pragma once
#include <cstdint>
#include <memory>

namespace spillway {

/// Owns a range of addresses. Who makes it decides what memory that is (near a NUMA node, pinned for a device) and
/// hands over how to give it back; an Arena only divides it.
class MemoryRange {
 public:
  using Release = void (*)(char* data, int64_t bytes);
  MemoryRange(char* data, int64_t bytes, Release release) : data_(data, {bytes, release}) {}

  char* data() const noexcept { return data_.get(); }
  int64_t bytes() const noexcept { return data_.get_deleter().bytes; }

 private:
  struct Releaser {
    int64_t bytes;
    Release release;
    void operator()(char* data) const noexcept { release(data, bytes); }
  };
  std::unique_ptr<char, Releaser> data_;
};

/// At least `bytes` of address space, page-aligned; memory is used only where it is touched, in huge pages where the
/// kernel has them. Throws std::system_error when the range cannot be reserved.
MemoryRange reserve_memory(int64_t bytes);
/// Reserves `bytes`; where the system grants fewer addresses (ulimit -v, vm.overcommit_memory=2), about half of those
/// that it does, which is said on stderr. Throws std::system_error when that is less than 16 MiB.
MemoryRange reserve_memory_up_to(int64_t bytes);

}  // namespace spillway
