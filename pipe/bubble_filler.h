/// The simulated run of a pipeline's ranks that places extra work in their bubbles; runtime/pipeline/kfac_in_bubbles.h
/// does it.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "pipe/extra.h"
#include "pipe/horizon.h"
#include "pipe/program.h"

namespace spillway::pipe {

inline constexpr int kNoDeadline = std::numeric_limits<int>::max();

/// An extra in one of the cycles of a run. Steps are counted from the first cycle's start.
struct Instance {
  int extra = 0, cycle = 0;
  int taken = 0;  ///< step of the item after which it may begin
  int deadline = kNoDeadline;
  int pieces_done = 0;
  double ready = kNever, done = kNever;
};

/// Runs the ranks through a horizon, and pieces of extras in their bubbles.
class BubbleFiller {
 public:
  struct Rank {
    size_t next = 0;  ///< place of its next node among its nodes
    double free = 0;  ///< end of its last item
    int64_t held = 0, most_held = 0;
    std::vector<Instance*> pending;  ///< extras whose item has ended, and which are not done
    std::vector<FilledItem> items;   ///< items that it has run, in order
    std::vector<int> step_of;        ///< by item
  };

  /// `instances` are those of all extras in cycle 0, then in cycle 1, and so on; a cycle has `steps` steps. A message
  /// takes `message` seconds. The horizon, the extras and the options are kept by reference.
  BubbleFiller(const Horizon& horizon, std::span<const Extra> extras, std::vector<Instance> instances, int steps,
               const FillOptions& options, double message);
  BubbleFiller(const BubbleFiller&) = delete;  // because ranks point to its instances
  BubbleFiller& operator=(const BubbleFiller&) = delete;

  /// Runs all nodes. Throws BadRequest when extras wait for each other for ever.
  void run();

  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<Instance>& instances() const { return instances_; }
  /// Returns the end of the last update of a step.
  double end_of(int step) const { return step_ends_.at(step); }

 private:
  const Extra& extra_of(const Instance& instance) const { return extras_[instance.extra]; }
  size_t index_of(int extra, int cycle) const { return cycle * extras_.size() + extra; }
  double piece_seconds(const Instance& instance) const;
  double ready_time(const Instance& instance) const;
  bool advance(Rank& rank, const std::vector<size_t>& nodes);
  Instance* choose(const Rank& rank, double until, double latest) const;
  Instance* first_due(const Rank& rank, int deadline) const;
  bool run_due(Rank& rank, const Node& node);
  void make_room(Rank& rank, const Node& node);
  void run_piece(Rank& rank, Instance& instance, int step);
  void run_node(Rank& rank, size_t index, double begin);
  void make_ready(Rank& rank, const Node& node);
  std::span<const int> made_ready_by(const Node& node) const;

  const Horizon& horizon_;
  const std::span<const Extra> extras_;
  const int steps_, cycles_;
  const FillOptions& options_;
  const double message_;
  std::vector<Rank> ranks_;
  size_t left_;               // nodes that have not run
  std::vector<double> ends_;  // by node; negative: it has not run
  std::vector<Instance> instances_;
  std::map<std::tuple<int, int, Item>, std::vector<int>> made_ready_by_;  // by rank, step of the cycle and item
  std::map<int, double> step_ends_;
  double late_ = 0;  // seconds by which items are later than the latest time that delays nothing
};

}  // namespace spillway::pipe
