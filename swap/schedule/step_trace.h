/// The trace of one step's uses of its storages: the record that schedules are made from.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/category.h"
#include "core/ids.h"

namespace spillway::swap {

inline constexpr int32_t kBeforeStep = -1;    ///< birth of a slot that existed when the step began
inline constexpr int32_t kOutlivesStep = -2;  ///< death of a slot that was alive when the step ended

/// One storage of the step. Operators are numbered from 0 in the order in which they ran.
struct Slot {
  int64_t bytes = 0;  ///< bytes as charged to the ledger
  Category category = Category::other;
  int32_t birth = kBeforeStep;       ///< the operator that made it, or that was the first to be given it
  bool born_as_output = false;       ///< its bytes are part of that operator's own_bytes
  bool born_streamed = false;        ///< that operator made it window by window; own_bytes excludes its bytes
  int32_t death = kOutlivesStep;     ///< the last operator that ran while it lived
  PageId page = 0;                   ///< identity of a slot that outlives steps
  int32_t position = -1;             ///< place of its birth among the operator's storages
  std::vector<int32_t> uses = {};    ///< operators that used it, resident or streamed, ascending; its birth included
  std::vector<int32_t> writes = {};  ///< operators that wrote it
};

struct OperatorRecord {
  const void* identity = nullptr;  ///< equal for equal operators of one process
  std::string_view name = {};      ///< lives as long as the process
  double seconds = 0;              ///< seconds of the kernel, waits for copies excluded
  double host_seconds = 0;         ///< seconds since the operator before ended: autograd, the user's code, the gate
  double excess_seconds = 0;       ///< both times beyond the shortest that they took together in any step
  int64_t own_bytes = 0;           ///< outputs and scratch that it held at once; of streamed slots, windows
  int64_t leased_bytes = 0;        ///< arguments, each storage once
  int64_t unpaged_bytes = 0;       ///< counted bytes outside every page when it started
  bool replayable = false;         ///< running it again on the same arguments makes the same bits and does nothing else
  std::vector<int32_t> touched = {};  ///< slots leased, each once
  /// Slots used window by window, each once: they need not be resident.
  std::vector<int32_t> streamed = {};
  std::vector<int32_t> births = {};  ///< slots first seen here, in the order of arguments and then outputs
};

/// The bytes that one operator needs at once; no budget below them can run the operator.
struct Need {
  std::string_view name = {};  ///< lives as long as the process
  int64_t leased_bytes = 0;    ///< arguments; see OperatorRecord for all three
  int64_t own_bytes = 0;
  int64_t unpaged_bytes = 0;
  int64_t bytes() const noexcept { return leased_bytes + own_bytes + unpaged_bytes; }
};

/// A message between ranks that travels beside the operators.
struct Message {
  int32_t after = kBeforeStep;  ///< the operator that ran last when it was handed over
  int32_t before = 0;           ///< the first operator that needs its result; as many as there are: the step's end
  double seconds = 0;           ///< time on the links, which carry one message after another
};

struct StepTrace {
  std::string kind;
  std::vector<OperatorRecord> operators;
  std::vector<Slot> slots;
  /// Messages, in the order in which they were handed over. Only dry runs know them: a real step's times include its
  /// waits for messages.
  std::vector<Message> messages = {};
  double tail_seconds = 0;         ///< from the end of the last operator to the end of the step
  double tail_excess_seconds = 0;  ///< part of tail_seconds beyond the shortest tail
  int64_t external_bytes = 0;      ///< libraries' bytes that every operator's unpaged_bytes include

  /// Returns the largest need of a single operator: arguments, outputs, scratch and bytes that cannot leave. No budget
  /// below it can run this step. `index` is set to that operator.
  int64_t floor_bytes(size_t* index = nullptr) const;
  /// Returns the bytes that would be counted at the instant of the peak if nothing had ever left.
  int64_t unconstrained_peak_bytes() const;
  /// Counts further bytes of libraries, in every operator.
  void add_external(int64_t bytes);
  /// Returns the time of the operators and of the gaps between them.
  double compute_seconds() const;
  /// Returns the shortest time of the operators and of the gaps between them: no step is faster.
  double shortest_seconds() const;
};

/// Returns the bytes of `trace`'s slots alive while each operator ran, its own_bytes and unpaged bytes included.
std::vector<int64_t> live_bytes(const StepTrace& trace);

/// Returns the first use of `slot` after operator `index`, counted on into the next step for slots that outlive it;
/// kNextUseUnknown when there is none.
int64_t next_use_after(const StepTrace& trace, const Slot& slot, int64_t index);

}  // namespace spillway::swap
