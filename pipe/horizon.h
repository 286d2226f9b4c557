/// Steps of a program that follow each other on paper: when each item runs, and how late it may run.
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

/// Work that a rank must do between an item and a later update.
struct Due {
  int rank = 0;
  int taken_step = 0;  ///< step of the item after which it may begin
  Item ready = {};     ///< that item
  int step = 0;        ///< step of the update
  double seconds = 0;
};

/// Seconds that a node's end is before a later one's start, at least.
struct Lag {
  size_t node = 0;
  double seconds = 0;
};

/// An item of one of the steps.
struct Node {
  int step = 0, rank = 0;
  Item item = {};
  std::vector<size_t> needs = {};  ///< nodes
  std::vector<Lag> lags = {};      ///< by work that is due
  double begin = 0, end = 0;       ///< the earliest possible
  double latest = kNever;          ///< the latest start that delays no rank's last update
  double seconds() const { return end - begin; }
};

/// Steps without a barrier between them. Each item starts when its rank is free and what it needs has come. An update
/// also leaves time for the work that is due before it.
class Horizon {
 public:
  /// `program` is one that check() takes, or lacks gradients of weights alone. It is not kept; `costs` is.
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
