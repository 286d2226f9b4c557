/// Memory that the machine has not.
#pragma once
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/error.h"

namespace spillway {

/// Memory that the machine has not, although the budget has room: the host's or the device's. The message says who
/// asked for how many bytes. Nothing can be freed for it any more.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(const std::string& what, int64_t bytes) : text_(what), requested_bytes_(bytes) {}  // NOLINT: a member
  const char* what() const noexcept override { return text_.what(); }
  int64_t requested_bytes() const noexcept { return requested_bytes_; }

 private:
  std::runtime_error text_;  ///< its copies cannot throw
  int64_t requested_bytes_;
};

/// Returns what `allocate` returns. Where the host has no memory for it, throws OutOfMemory that names `who` and the
/// bytes, because std::bad_alloc tells neither.
template <class Allocate>
decltype(auto) naming_who_allocates(std::string_view who, int64_t bytes, const Allocate& allocate) {
  try {
    return allocate();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(str("[memory] ", who, " needs ", bytes, " bytes, and the host has no memory for them"), bytes);
  }
}

}  // namespace spillway
