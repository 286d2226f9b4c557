/// The plan of an allreduce over the levels of a machine, as a value that every rank computes alike.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddl/allreduce/algorithm.h"
#include "ddl/comm/element.h"
#include "ddl/comm/levels.h"

namespace spillway::ddl {

struct Program;

/// The maximum bytes that one level's links carry: a rank's links, and those of one of the groups that the level joins.
struct LevelTraffic {
  int64_t sent_by_rank = 0;
  int64_t sent_by_group = 0;
  int64_t received_by_group = 0;
};

/// A reduce-scatter up the levels, then an all-gather down (Cho et al. 2019, BlueConnect). At level 1 each group shares
/// a vector among its ranks. At level 2 those ranks of the groups that have the same part share it among them, and so
/// on. Above hosts of L ranks each rank moves S/L bytes, and each host S. With uneven groups parts do not coincide: the
/// cuts of all groups of a level together make blocks. Within a block every group has one rank in charge, which takes
/// part for it. With 4+2 ranks, blocks are quarters, and on the second host each rank has two. So 2(N−1)/N of the
/// vector leaves each of N hosts. That is the minimum (the cut bound), whatever the order of ranks and whether or not
/// hosts are alike.
class Plan {
 public:
  /// Takes one algorithm for each level: `algorithms[i]` is level i+1's. Throws BadRequest unless there are as many as
  /// levels, and oneshot is at the last level alone.
  Plan(Levels levels, std::vector<Algorithm> algorithms);
  /// Uses one algorithm on every level.
  explicit Plan(const Levels& levels, Algorithm algorithm = Algorithm::direct);

  const Levels& levels() const noexcept { return levels_; }
  const std::vector<Algorithm>& algorithms() const noexcept { return algorithms_; }
  int size() const noexcept { return levels_.size(); }
  /// Returns the program of `rank` for a vector of `count` elements. Cost: ranks times levels.
  Program program(int rank, int64_t count, Element element) const;
  /// Hands each rank's program to `visit`, one after another. Cost: that of all programs.
  void for_each_program(int64_t count, Element element,
                        const std::function<void(int rank, const Program&)>& visit) const;
  /// True when sums are taken in one order, for any size: level by level in the order of ranks. All such plans over the
  /// same levels give the same bits.
  bool keeps_order() const;

  /// Returns the bytes that the levels' links carry for a vector, by level from 1.
  std::vector<LevelTraffic> traffic(int64_t count, Element element) const;

  /// Returns a hash that is equal on two ranks exactly when (except for a collision) their plans are equal.
  uint64_t hash() const;
  /// Returns the names of the algorithms, by level: `direct x ring`.
  std::string name() const;

 private:
  class Cuts;
  Program program(const Cuts& cuts, int rank, int64_t count, Element element) const;

  Levels levels_;
  std::vector<Algorithm> algorithms_;
};

/// The sizes in which a vector goes through the rounds of its plan.
struct AllreduceOptions {
  /// The size of chunks in bytes. The vector goes through the rounds of its plan in chunks, one behind the other, so
  /// that every level has work at any time. Smaller chunks overlap better and stay in cache; larger ones cost fewer
  /// messages. 1 KiB to 1 GiB; the same on every rank.
  int64_t chunk_bytes = int64_t{1} << 20;
  /// The size of segments in bytes, by level from 1. A message of more bytes goes as several of this size at once.
  /// Where a network sends small messages off at once, their two ends then need not wait for each other. 1 KiB and
  /// more; the same on every rank; empty: messages are never cut.
  std::vector<int64_t> segment_bytes = {};

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The parts of the time of an allreduce's rounds, on this rank.
struct RoundTimes {
  std::vector<std::chrono::nanoseconds> waited;  ///< by level from 1: time that only waited for its messages
  std::chrono::nanoseconds adding{};
};

/// The plan and the options by which a vector is reduced.
struct Choice {
  Plan plan;
  AllreduceOptions options = {};
};

}  // namespace spillway::ddl
