/// Runs of a pipeline whose items sleep.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "pipe/costs.h"
#include "pipe/fill.h"
#include "pipe/program.h"

namespace spillway::tools {

/// The messages between ranks.
struct Messages {
  int64_t bytes = 0;                 ///< size of each message
  double link_bytes_per_second = 0;  ///< rate at which a rank's messages leave; 0: as fast as memory is
};

struct RunOptions {
  int cycles = 1;  ///< cycles that are measured, after those before the ranks are in step
  Messages messages = {};
};

/// An item, or a piece of an extra, that a rank did.
struct DoneItem {
  int cycle = 0, step = 0;  ///< step of the cycle
  pipe::FilledItem what = {};
};

struct RunResult {
  double cycle_seconds = 0;                      ///< median of the measured cycles
  std::vector<std::vector<DoneItem>> done = {};  ///< by rank, in order
};

/// Runs a cycle of steps again and again. Ranks are threads. Each does its items and extras in the order of `filled`.
/// They sleep for as long as `costs` and `extras` say. Messages travel through a courier, and are copied from and to
/// memory of the rank. Steps follow each other without a barrier.
///
/// It is the twin of PipelineExecutor::learn() in the order of items, in receiving before and sending behind each of
/// them, in the courier, and in the number of slots. It has no tensors, and its updates meet no other rank. Where a
/// stage has copies, an extra that comes after another rank's is told so through memory, not by a message.
///
/// A sleep ends late. A rank makes up for that in its next items, and tells it with its messages to a rank that waits
/// for them. So the times are those of messages and of the executor's own work beside the items.
RunResult run_cycles(const pipe::StepProgram& program, const pipe::Filled& filled, std::span<const pipe::Extra> extras,
                     const pipe::Costs& costs, const RunOptions& options);

/// The messages of a median in message_seconds().
inline constexpr int kMessageRepeats = 21;

/// Returns the median seconds from the start of a send until the message has been read, with both copies, between two
/// ranks that do nothing else. There is a pause before each message, so its memory is as cold as behind an item.
double message_seconds(const Messages& messages, int repeats);

}  // namespace spillway::tools
