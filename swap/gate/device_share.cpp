#include "swap/gate/device_share.h"

#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/memory/fork.h"
#include "swap/gate/thread_storages.h"

namespace spillway::swap {
namespace {

/// The Sessions that share the device. Used under OpenDevice's lock.
struct Shares {
  int64_t sessions = 0;
  std::vector<std::shared_ptr<DevicePager>> unclosed;  // each has tensors that could not come back to the device
};
Shares& shares() {
  static auto* shares = new Shares();
  return *shares;
}

void close(std::shared_ptr<DevicePager> device) noexcept {
  if (!device->close()) shares().unclosed.push_back(std::move(device));
  record_made_storages(true);
}

/// Starts the budget for the first Session, whose `user` gets the storages that its thread left behind.
void open(std::shared_ptr<DevicePager> device, UserId user, int64_t min_page_bytes) {
  try {
    record_made_storages(false);
    page_left_storages(device->pager, min_page_bytes, user);
    device->set_budget();
  } catch (...) {
    close(std::move(device));
    throw;
  }
}

}  // namespace

DeviceShare share_device(const SessionOptions& options) {
  if (forked_while_paging())
    throw std::logic_error(
        "[session] this process was forked while its parent had a Session open, and has none of its threads; open "
        "Sessions in processes that were forked before, or that call exec");
  OpenDevice& shared = OpenDevice::instance();
  std::unique_lock lock(shared.mutex);
  const bool first = !shared.pager;
  std::shared_ptr<DevicePager> device = first ? std::make_shared<DevicePager>(options) : shared.pager;
  if (!first) device->require_alike(options);
  const UserId user = device->pager.table().add_user();
  if (first) open(device, user, options.min_page_bytes);
  shared.pager = device;
  ++shares().sessions;
  DeviceShare share(device.get(), LeaveDevice{user});
  lock.unlock();
  if (first) return share;
  const std::unique_lock turn(device->turns);  // operators of other Sessions may run
  page_left_storages(device->pager, options.min_page_bytes, user);
  return share;
}

void LeaveDevice::operator()(DevicePager* device) const noexcept {
  if (forked_while_paging()) return;
  std::shared_ptr<DevicePager> kept = DevicePager::current();  // another Session may close it before the turn is over
  std::unique_lock turn(device->turns);  // other threads' operators and loans hold pages that may end now
  OpenDevice& shared = OpenDevice::instance();
  std::lock_guard lock(shared.mutex);
  remember_storages(device->pager, user);
  if (--shares().sessions > 0) return device->pager.remove_user(user);
  close(kept);
  turn.unlock();
  kept.reset();
  shared.pager.reset();
}

}  // namespace spillway::swap
