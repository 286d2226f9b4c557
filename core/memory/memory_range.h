/// A range of addresses that an arena divides, and the function that releases it.
#pragma once
#include <cstdint>
#include <memory>

namespace spillway {

/// Owns a range of addresses. Its maker decides the kind of memory (near a NUMA node, pinned for a device) and passes
/// the function that releases it. An Arena only divides it.
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

/// Reserves at least `bytes` of address space, page-aligned. Memory is used only where it is touched, in huge pages
/// where the kernel has them. Throws std::system_error when the range cannot be reserved.
MemoryRange reserve_memory(int64_t bytes);
/// Reserves `bytes`. Where the system grants fewer addresses (ulimit -v, vm.overcommit_memory=2), reserves about half
/// of the addresses that it grants, and reports that on stderr. Throws std::system_error when that half is less than 16
/// MiB.
MemoryRange reserve_memory_up_to(int64_t bytes);

}  // namespace spillway
