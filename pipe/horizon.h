/// The horizon: steps of a program that follow each other, and the earliest and the latest start of each item.
#pragma once
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "pipe/costs.h"
#include "pipe/program.h"

namespace spillway::pipe {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// An extra that its rank must do between an item and a later update.
struct Due {
  int rank = 0;
  int taken_step = 0;  ///< step of the item after which it may begin
  Item ready = {};     ///< that item
  int step = 0;        ///< step of the update
  double seconds = 0;
};

/// The least time between the end of an earlier node and the start of an update, because extras must run in it.
struct Lag {
  size_t node = 0;  ///< the earlier node
  double seconds = 0;
};

/// An item of one of the steps.
struct Node {
  int step = 0, rank = 0;
  Item item = {};
  std::vector<size_t> needs = {};  ///< nodes that must end before it
  std::vector<Lag> lags = {};      ///< earlier nodes of its rank that an update must leave time after
  double begin = 0, end = 0;       ///< earliest start, and the end then
  double latest = kNever;          ///< latest start that delays no rank's last update
  double seconds() const { return end - begin; }
};

/// The items of some steps, without a barrier between the steps. Each item starts when its rank is free and the results
/// that it reads have come. An update also leaves time for the extras that are due before it.
class Horizon {
 public:
  /// `program` is one that check() takes, or lacks gradients of weights alone. `costs` is kept by reference.
  Horizon(const StepProgram& program, const Costs& costs, int steps, std::span<const Due> due = {});

  int64_t ranks() const { return std::ssize(of_rank_); }
  size_t size() const { return nodes_.size(); }
  /// Returns the nodes of a rank, in order.
  const std::vector<size_t>& of_rank(int64_t rank) const { return of_rank_[rank]; }
  const Node& node(size_t index) const { return nodes_[index]; }
  /// Returns the time from a node's end until a node of `rank` that needs it may start.
  double message(const Node& from, int rank) const { return from.rank == rank ? 0 : costs_.message; }
  /// Returns the end of the last update of a step.
  double end_of(int step) const { return ends_[step]; }

 private:
  void add(const StepProgram& program, int step);
  bool add(const StepProgram& program, int step, int rank, size_t place, std::map<Item, size_t>& known);
  std::vector<Lag> lags_of(int step, int rank) const;
  void set_latest();

  const Costs& costs_;
  std::map<std::pair<int, int>, std::vector<Due>> due_;  // by rank and step
  std::vector<Node> nodes_;                              // each after the nodes that it needs
  std::vector<std::vector<size_t>> of_rank_;
  std::vector<double> ends_;  // by step
};

}  // namespace spillway::pipe
