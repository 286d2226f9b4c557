#include "swap/gate/device_pager.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <mutex>

#include "core/device/open_device.h"
#include "core/error.h"
#include "core/host/memory_limit.h"
#include "core/memory/fork.h"
#include "swap/gate/session_scope.h"

namespace spillway::swap {
namespace {

std::unique_ptr<Timeline> make_timeline(const SessionOptions& options, Device& device, std::string_view lane) {
  std::unique_ptr<Timeline> timeline = device.make_timeline(lane);
  return options.decorate_timeline ? options.decorate_timeline(std::move(timeline), lane) : std::move(timeline);
}

/// Returns the limit of the memory for the host tier. A host budget of the user's may be more than a rank's equal part,
/// because other ranks may use less.
MemoryLimit host_limit(const SessionOptions& options, const Device& device) {
  const int ranks = options.host_budget_bytes == kUnlimitedBytes ? options.ranks_of_host : 1;
  return share_for_pages(host_memory_limit(), /*pinned=*/!device.torch_device().is_cpu(), ranks);
}

/// Reserves the memory for the host tier.
HostSlab make_host(const SessionOptions& options, Device& device) {
  const MemoryLimit limit = host_limit(options, device);
  const int64_t capacity = std::min(options.host_budget_bytes, limit.bytes);
  MemoryRange range = device.reserve_host_memory(capacity);
  const int64_t reserved = range.bytes();
  return {std::move(range), std::min(capacity, reserved), capacity < options.host_budget_bytes ? limit.source : ""};
}

std::unique_ptr<DiskTier> make_disk(const SessionOptions& options, HostSlab& host) {
  if (options.disk_directory.empty()) return nullptr;
  return std::make_unique<DiskTier>(options.disk_directory, host, DiskOptions{.decorate_io = options.decorate_disk});
}

}  // namespace

DevicePager::DevicePager(const SessionOptions& options)
    : device(open_device(options.device)),
      host(make_host(options, device)),
      disk(make_disk(options, host)),
      out(make_timeline(options, device, "copy out")),
      in(make_timeline(options, device, "copy in")),
      pager(device.memory(), host, *out, *in, options.small_page_bytes, disk.get()),
      budget_bytes_(options.budget_bytes),
      host_budget_bytes_(options.host_budget_bytes),
      disk_directory_(options.disk_directory),
      device_name_(options.device),
      engine_(options.engine),
      small_page_bytes_(options.small_page_bytes) {}

void DevicePager::set_budget() {
  Ledger& ledger = device.ledger();
  const bool soft = engine_ == Engine::unified;  // managed memory may exceed its budget, so it is never refused
  device.use_managed_memory(soft);
  const int64_t excess = ledger.used_bytes() - budget_bytes_;
  if (excess > 0 && !soft) pager.free_physical_memory(excess);
  if (ledger.used_bytes() > budget_bytes_ && !soft)
    throw OutOfBudget(str("[session] a budget of ", format_bytes(budget_bytes_), " is below the ",
                          format_bytes(ledger.used_bytes()), " that are held on ", ledger.device(), " and cannot leave",
                          pager.table().locked([&] { return pager.table().describe_unpaged(); })),
                      ledger.used_bytes(), budget_bytes_);
  ledger.set_budget(budget_bytes_, soft);
  device.memory().set_reclaimer(this);
  ledger.reset_peak();
}

void DevicePager::require_alike(const SessionOptions& options) const {
  auto require = [](std::string_view option, int64_t asked, int64_t shared) {
    auto format = [](int64_t bytes) { return bytes == kUnlimitedBytes ? std::string("unlimited") : str(bytes); };
    if (asked != shared)
      throw BadRequest(str("SessionOptions.", option, " is ", format(asked), ", but another Session that is open on ",
                           "this device has ", format(shared), "; Sessions share the device, so they must agree"));
  };
  if (options.device != device_name_)
    throw BadRequest(str("SessionOptions.device is '", options.device, "', but another Session that is open has '",
                         device_name_, "'; Sessions that are open together use one device"));
  if (options.engine != engine_)
    throw BadRequest(str("SessionOptions.engine is ", name(options.engine), ", but another Session that is open on ",
                         "this device has ", name(engine_), "; Sessions share the device, so they must agree"));
  require("budget_bytes", options.budget_bytes, budget_bytes_);
  require("host_budget_bytes", options.host_budget_bytes, host_budget_bytes_);
  if (options.disk_directory != disk_directory_)
    throw BadRequest(str("SessionOptions.disk_directory is '", options.disk_directory.string(), "', but another ",
                         "Session that is open on this device has '", disk_directory_.string(), "'; Sessions share ",
                         "the device, so they must agree"));
  require("small_page_bytes", options.small_page_bytes, small_page_bytes_);
}

OpenDevice& OpenDevice::instance() {
  static auto* open = new OpenDevice();  // tensors may outlive static objects
  return *open;
}

std::shared_ptr<DevicePager> DevicePager::current() {
  if (forked_while_paging()) return nullptr;
  OpenDevice& open = OpenDevice::instance();
  std::lock_guard lock(open.mutex);
  return open.pager;
}

std::unique_lock<FairMutex> DevicePager::take_turn(DevicePager* device) {
  if (!device || !OperatorScope::current().empty()) return {};
  return std::unique_lock(device->turns);
}

void DevicePager::reclaim(int64_t bytes) {
  std::unique_lock turn(turns, std::defer_lock);
  // Only a thread inside the gate waits. Other threads may be working for the operator that runs, which waits for them.
  if (OperatorScope::current().empty() && SessionScope::current()) turn.lock();
  pager.reclaim(bytes);
}

bool DevicePager::close() noexcept {
  bool complete = true;
  device.ledger().set_budget(kUnlimitedBytes);
  device.use_managed_memory(false);
  try {
    pager.unregister_resident();
  } catch (const std::exception& error) {
    // Closing goes on, because it has no other way. Tensors that stay absent keep raising the clear error when they are
    // touched.
    std::fprintf(stderr, "[session] not every tensor came home: %s\n", error.what());
    complete = false;
  }
  device.memory().set_reclaimer(nullptr);
  return complete;
}

}  // namespace spillway::swap
