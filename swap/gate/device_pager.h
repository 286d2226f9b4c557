/// The pager that all open Sessions share: LibTorch has one allocator for a device, so there is one pager behind it.
#pragma once
#include <filesystem>
#include <memory>
#include <mutex>

#include "core/device/device.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/gate/fair_mutex.h"
#include "swap/gate/session_options.h"
#include "swap/pager/pager.h"
#include "swap/tiers/disk_tier.h"

namespace spillway::swap {

/// The device's budget, pager, host slab, disk and copy lanes; one device at a time. Sessions have shares of it
/// (swap/gate/device_share.h). It is one of the process-wide exceptions that LibTorch forces.
class DevicePager final : public Reclaimer {
 public:
  /// Returns the device's pager, and keeps it alive; nullptr while no Session is open. Waits for a Session that
  /// opens or closes.
  static std::shared_ptr<DevicePager> current();

  /// Waits for this thread's turn, and holds it while the result lives. Code that looks a page up between operators
  /// needs the turn, because pages end in turns. Holds nothing where `device` is null, and inside an operator of this
  /// thread, because that operator has had its turn.
  static std::unique_lock<FairMutex> take_turn(DevicePager* device);

  /// Makes the parts; the budget is unlimited yet.
  explicit DevicePager(const SessionOptions& options);
  DevicePager(const DevicePager&) = delete;
  DevicePager& operator=(const DevicePager&) = delete;

  /// The turns of operators. One operator runs on the device at a time, so that each has the whole budget to itself.
  /// Two Sessions then need the larger of their floors, not the sum, and an operator's bytes are its own.
  FairMutex turns;
  Device& device;
  HostSlab host;
  const std::unique_ptr<DiskTier> disk;
  const std::unique_ptr<Timeline> out, in;
  Pager pager;

  /// Throws BadRequest naming the option and both values when a joining Session's options differ from the first's.
  void require_alike(const SessionOptions& options) const;
  /// Starts the budget, once the bytes that exceed it have left the device. Throws OutOfBudget when they cannot.
  void set_budget();
  /// Ends the budget and brings every tensor back to the device. Returns false when one could not come; the pager must
  /// then live on for it.
  bool close() noexcept;

  // Reclaimer. Between its operators, a thread waits for the operator that runs on another thread. Otherwise it could
  // fail beside the bytes that this operator holds.
  void reclaim(int64_t bytes) override;
  bool free_physical_memory(int64_t bytes) override { return pager.free_physical_memory(bytes); }

 private:
  const int64_t budget_bytes_;
  const int64_t host_budget_bytes_;
  const std::filesystem::path disk_directory_;
  const std::string device_name_;
  const Engine engine_;
  const int64_t small_page_bytes_;
};

/// The process's device pager. LibTorch has one allocator for a device, so there is one.
struct OpenDevice {
  std::mutex mutex;  ///< also held while Sessions open and close, so that others wait for them
  std::shared_ptr<DevicePager> pager;

  static OpenDevice& instance();
};

}  // namespace spillway::swap
