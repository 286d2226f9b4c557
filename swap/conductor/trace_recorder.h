/// The recorder of a step's uses of its pages, operator by operator.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/compute_clock.h"
#include "core/message_listener.h"
#include "swap/pager/pager.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// A storage seen for the first time while a step ran.
struct Birth {
  Page* page;
  int32_t position;       ///< place among the operator's storages: arguments from 0, outputs from kOutputPosition
  bool streamed = false;  ///< an output that is made window by window
};
inline constexpr int32_t kOutputPosition = 1 << 20;

/// The identity of an operator, as the trace keeps it.
struct OperatorCall {
  const void* identity;   ///< equal for equal operators of one process
  std::string_view name;  ///< lives as long as the process
  bool replayable;        ///< see OperatorRecord
};

/// Records the trace of the open step. Used by one thread.
class TraceRecorder final : public MessageListener {
 public:
  explicit TraceRecorder(Pager& pager) : pager_(pager) {}

  void begin_step(std::string_view kind);
  /// Starts the clock: time before this call is not the step's.
  void start_clock();
  /// Returns the trace. `measured`, if any, holds the operators' times on a device that the host does not wait for.
  StepTrace end_step(std::span<const ComputeClock::Times> measured);

  void begin_operator(const OperatorCall& call, int64_t unpaged_bytes);
  /// Returns the slot of a page, and whether the step meets the page here. Such a page existed before the step, because
  /// another Session or thread may have used it last.
  std::pair<int32_t, bool> find_or_add(const Page& page);
  /// Adds an argument's storage that was first seen here; returns its slot.
  int32_t add_argument(const Birth& birth);
  /// Adds a use by the operator that runs; `streamed` where it uses the page window by window. Returns true where the
  /// step meets the page here (find_or_add()).
  bool add_use(const PageUse& use, bool streamed);
  /// Adds a result; returns its slot.
  int32_t add_output(const Birth& birth);
  /// Ends the operator. `seconds` excludes waits; `own_bytes` is the maximum of outputs and scratch.
  void end_operator(double seconds, int64_t own_bytes);
  /// Adds a message that travels beside the operators from now on.
  int64_t sent(double seconds) override;
  void awaited(int64_t number) override;
  /// Ends the slot of a page that was destroyed. Returns false when the step never met it.
  bool end_page(PageId page);

  const Slot& slot(int32_t s) const { return trace_.slots[s]; }
  /// Returns the index of the operator that runs, or ran last; −1 before the first.
  int32_t index() const noexcept { return std::ssize(trace_.operators) - 1; }
  /// Returns the bytes that the operator that runs leases, each storage once.
  int64_t leased_bytes() const { return trace_.operators.back().leased_bytes; }

 private:
  int32_t add_slot(const Page& page, int32_t birth);
  double seconds_since_last_operator() const;

  Pager& pager_;
  StepTrace trace_;
  std::unordered_map<PageId, int32_t> slots_;       // slots of the open step's pages
  std::chrono::steady_clock::time_point last_end_;  // end of the operator before
  double delayed_ = 0;                              // the pager's delays until then
};

}  // namespace spillway::swap
