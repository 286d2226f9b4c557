/// The pages that the pager's tests use: each of a mebibyte.
#pragma once
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"

namespace spillway::testing {

inline constexpr int64_t kBytes = 1 << 20;
inline const int64_t kCharge = DeviceMemory::charge_of(kBytes);

/// Leases the buffer's page and gives it back. Its next use stays what it was.
inline void touch(Pager& pager, const Buffer& buffer, bool write = false) {
  PageUse use{buffer.page(), write, buffer.page()->use.next_use};
  pager.lease({&use, 1});
  pager.unlease({&use, 1});
}

}  // namespace spillway::testing
