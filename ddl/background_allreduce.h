/// Allreduces that go on while their caller does something else.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "core/timeline.h"
#include "ddl/allreduce.h"
#include "ddl/communicator.h"
#include "ddl/cost_model.h"

namespace spillway::ddl {

/// One allreduce after another, in the order of submission, on a thread and a communicator of their own. Used by one
/// thread at a time.
class BackgroundAllreduce {
 public:
  /// `comm` is this object's alone (Communicator::duplicate()). Throws BadRequest as Allreduce does.
  BackgroundAllreduce(std::shared_ptr<Communicator> comm, Choice choice);
  /// Gives up where something is under way or waits.
  ~BackgroundAllreduce();
  BackgroundAllreduce(const BackgroundAllreduce&) = delete;
  BackgroundAllreduce& operator=(const BackgroundAllreduce&) = delete;

  const Plan& plan() const noexcept { return sizes_.plan(); }
  /// As Allreduce's.
  int64_t scratch_bytes(int64_t count, Element element) { return sizes_.scratch_bytes(count, element); }

  /// Starts what Allreduce::reduce does; every rank starts the same ones in the same order. `vector` must stay valid,
  /// and is nobody else's, until the ticket is done. `scratch` may be that of the ones before: they do not overlap.
  /// Begins when `after` is done. Does not block. CommError travels in the ticket, and in those of all later ones.
  [[nodiscard]] Ticket reduce(const Vector& vector, Reduction reduction, std::span<std::byte> scratch,
                              uint64_t signature = 0, Ticket after = {});
  /// Ends what is under way and all that follows, here and on every other rank, with a CommError: for a caller that
  /// cannot make the calls which the others will.
  void give_up();
  /// Of what is done, once no ticket is open: time is from the start of each, or from its submission where none was
  /// under way, to its end.
  const AllreduceTotals& totals() const noexcept { return totals_; }

 private:
  const std::shared_ptr<Communicator> comm_;
  Allreduce allreduce_;                        ///< the worker's
  Allreduce sizes_;                            ///< the caller's, to ask
  AllreduceTotals totals_;                     ///< the worker's, like the next
  std::chrono::steady_clock::time_point end_;  ///< of the last one
  Ticket last_;
  WorkerTimeline worker_;  ///< last: it ends before what it works on
};

}  // namespace spillway::ddl
