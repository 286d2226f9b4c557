/// The part that a Session has in the device's pager.
#pragma once
#include <memory>

#include "core/ids.h"
#include "swap/gate/device_pager.h"

namespace spillway::swap {

struct LeaveDevice {
  UserId user;
  void operator()(DevicePager* device) const noexcept;
};

/// One Session's part in the device. The first share makes the device's pager, others join it, and the last one closes
/// it: that brings every tensor back to the device and lifts the budget.
using DeviceShare = std::unique_ptr<DevicePager, LeaveDevice>;

/// Makes the device's pager, or joins it. A joining Session asks for the same device, budgets and `small_page_bytes`;
/// the copy lanes stay as the first Session decorated them. Makes pages of the storages that the thread left behind
/// (swap/gate/thread_storages.h). Thread-safe. Throws BadRequest naming the option and both values, or OutOfBudget when
/// more than the budget is held and cannot leave.
[[nodiscard]] DeviceShare share_device(const SessionOptions& options);

}  // namespace spillway::swap
