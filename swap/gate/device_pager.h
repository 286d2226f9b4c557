/// What all open Sessions share: LibTorch has one allocator for a device, so there is one pager behind it.
#pragma once
#include <filesystem>
#include <memory>

#include "core/device/device.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/gate/fair_mutex.h"
#include "swap/gate/session_options.h"
#include "swap/pager/pager.h"
#include "swap/tiers/disk_tier.h"

namespace spillway {

/// The device's budget, pager, host slab, disk and copy lanes; one device at a time. Made by the first Session, joined
/// by others, closed by the last: that brings every tensor home and lifts the budget. One of the process-wide
/// exceptions that LibTorch forces.
class DevicePager final : public Reclaimer {
 public:
  struct Leave {
    UserId user;
    void operator()(DevicePager* device) const noexcept;
  };
  /// One Session's part in the device; its end is the Session's.
  using Share = std::unique_ptr<DevicePager, Leave>;

  /// Makes or joins. A joining Session asks for the same device, budgets and `small_page_bytes`; the copy lanes are as
  /// the first one decorated them. Thread-safe. Throws BadRequest naming the option and both values, or OutOfBudget
  /// when more than the budget is held already.
  static Share join(const SessionOptions& options);
  /// The device's pager, and a hold on it; nullptr while no Session is open.
  static std::shared_ptr<DevicePager> current();

  /// Waits for this thread's turn, and holds it. Whoever looks a page up between operators needs it, because pages end
  /// in turns. Holds nothing where `device` is null, and inside an operator of this thread, which has had its turn.
  static std::unique_lock<Turns> take_turn(DevicePager* device);

  explicit DevicePager(const SessionOptions& options);
  DevicePager(const DevicePager&) = delete;
  DevicePager& operator=(const DevicePager&) = delete;

  /// One operator runs on the device at a time, so that each has the whole budget to itself: two Sessions need the
  /// larger of their floors, not the sum, and an operator's bytes are its own.
  Turns turns;
  Device& device;
  HostSlab host;
  const std::unique_ptr<DiskTier> disk;
  const std::unique_ptr<Timeline> out, in;
  Pager pager;

  // Reclaimer. Between its operators, a thread waits for the operator that runs on another one rather than fail beside
  // what that one holds.
  void reclaim(int64_t bytes) override;
  bool free_physical_memory(int64_t bytes) override { return pager.free_physical_memory(bytes); }

 private:
  void require_alike(const SessionOptions& options) const;
  /// False when a tensor could not come home.
  bool close() noexcept;

  const int64_t budget_bytes_;
  const int64_t host_budget_bytes_;
  const std::filesystem::path disk_directory_;
  const std::string device_name_;
  const Engine engine_;
  const int64_t small_page_bytes_;
};

}  // namespace spillway
