#include "pipe/channels.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "pipe/run_to_end.h"

namespace spillway::pipe {
namespace {

/// The messages of a channel: how many were sent, and how many were read.
struct Traffic {
  int sent = 0, read = 0;
};

/// A run of a program in which each end of a channel has `slots` slots. The order counts, and the time does not.
class BoundedRun {
 public:
  BoundedRun(const StepProgram& program, int slots)
      : program_(program),
        channels_(channels(program)),
        traffic_(channels_.size()),
        capacity_(2 * slots),
        ranks_(program.items.size()) {}

  /// Returns true when every rank comes to its end.
  bool ends() {
    const auto at_end = [&](int rank) { return ranks_[rank].item == program_.items[rank].size(); };
    return !run_to_end(std::ssize(ranks_), at_end, [&](int rank) { return advance(rank); });
  }

 private:
  struct Rank {
    size_t item = 0;
    size_t step = 0;  // of the item's reads and sends
  };

  bool is_of(const Channel& channel, const Item& item, bool sends) const {
    const bool is_backward = item.work == Work::backward || item.work == Work::input_gradient;
    if (item.work != Work::forward && !is_backward) return false;
    return channel.is_gradient == is_backward && channel.copy == program_.copy_of[item.micro_batch] &&
           (sends ? channel.from_stage : channel.to_stage) == item.stage;
  }

  /// Does the next read or send of a rank, or ends its item. Returns false where the rank must wait.
  bool advance(int rank) {
    Rank& at = ranks_[rank];
    const Item& item = program_.items[rank][at.item];
    const size_t count = channels_.size();
    for (; at.step < 2 * count; ++at.step) {
      const bool sends = at.step >= count;
      const size_t channel = at.step % count;
      if (!is_of(channels_[channel], item, sends)) continue;
      Traffic& traffic = traffic_[channel];
      if (sends ? traffic.sent - traffic.read >= capacity_ : traffic.read >= traffic.sent) return false;
      ++(sends ? traffic.sent : traffic.read);
      ++at.step;
      return true;
    }
    at = {at.item + 1, 0};
    return true;
  }

  const StepProgram& program_;
  const std::vector<Channel> channels_;
  std::vector<Traffic> traffic_;
  const int capacity_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::string describe(const Channel& channel) {
  return str(channel.is_gradient ? "errors" : "activations", " from stage ", channel.from_stage, " to stage ",
             channel.to_stage);
}

std::vector<Channel> channels(const StepProgram& program) {
  std::vector<Channel> all;
  for (int copy = 0; copy < std::ssize(program.graph.rank_of); ++copy)
    for (const Edge& edge : program.graph.edges) {
      const auto& rank_of = program.graph.rank_of[copy];
      const int from = rank_of[edge.from], to = rank_of[edge.to];
      if (from == to) continue;
      all.push_back({edge.from, edge.to, false, copy, from, to});
      all.push_back({edge.to, edge.from, true, copy, to, from});
    }
  return all;
}

int slots_needed(const StepProgram& program) {
  for (int slots = 1; slots <= std::max(1, program.micro_batches()); ++slots)
    if (BoundedRun(program, slots).ends()) return slots;
  throw BadRequest("[pipe] ranks wait for each other for ever, however many messages are kept");
}

}  // namespace spillway::pipe
