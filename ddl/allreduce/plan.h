/// Who reduces what: an allreduce over the levels of a machine, as a value that every rank computes alike.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddl/allreduce/algorithms.h"
#include "ddl/allreduce/program.h"
#include "ddl/comm/levels.h"

namespace spillway::ddl {

/// What one level's links carry, at most: a rank's, and those of one of the groups that the level joins together.
struct LevelTraffic {
  int64_t sent_by_rank = 0;
  int64_t sent_by_group = 0;
  int64_t received_by_group = 0;
};

/// Reduce-scatter up the levels, all-gather down (Cho et al. 2019, BlueConnect). At level 1 each group shares a vector
/// among its ranks; at level 2 those ranks of the groups that have the same part share it among them, and so on: above
/// hosts of L ranks S/L bytes a rank move, S a host. With uneven groups parts do not coincide: the cuts of all groups
/// of a level together make blocks, and within a block every group has one rank in charge, which takes part for it. 4+2
/// ranks: blocks are quarters, and on the second host each rank has two. So 2(N−1)/N of the vector leaves each of N
/// hosts, the least that can (the cut bound), whatever the order of ranks and whether or not hosts are alike.
class Plan {
 public:
  /// `algorithms[i]` is level i+1's. Throws BadRequest unless there are as many as levels, oneshot
  /// at the last alone.
  Plan(Levels levels, std::vector<Algorithm> algorithms);
  /// The same algorithm on every level.
  explicit Plan(Levels levels, Algorithm algorithm = Algorithm::direct);

  const Levels& levels() const noexcept { return levels_; }
  const std::vector<Algorithm>& algorithms() const noexcept { return algorithms_; }
  int size() const noexcept { return levels_.size(); }
  /// What `rank` does with a vector of `count` elements. Cost: ranks times levels.
  Program program(int rank, int64_t count, Element element) const;
  /// Hands each rank's program to `visit`, one after another. Cost: that of all programs.
  void for_each_program(int64_t count, Element element,
                        const std::function<void(int rank, const Program&)>& visit) const;
  /// Sums are taken in one order, whatever the size: level by level in the order of ranks. All plans over the same
  /// levels of which that is true give the same bits.
  bool keeps_order() const;

  /// What the levels' links carry for a vector, by level from 1.
  std::vector<LevelTraffic> traffic(int64_t count, Element element) const;

  /// Equal on two ranks exactly when (but for a collision) their plans are.
  uint64_t hash() const;
  /// `direct x ring`: by level.
  std::string name() const;

 private:
  class Cuts;
  Program program(const Cuts& cuts, int rank, int64_t count, Element element) const;

  Levels levels_;
  std::vector<Algorithm> algorithms_;
};

}  // namespace spillway::ddl
