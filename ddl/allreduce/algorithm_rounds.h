/// The rounds of each algorithm: direct, ring, halving, leader and oneshot, on a block of the vector that a few ranks
/// share.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/allreduce/algorithm.h"
#include "ddl/allreduce/program.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Returns the rounds in which n members collect. gathering_rounds_of() returns those in which they hand results out.
int collecting_rounds_of(Algorithm algorithm, int members);
/// Returns the rounds in which n members hand results out.
int gathering_rounds_of(Algorithm algorithm, int members);

/// A part of the vector, and the rank that has its group's result for that part.
struct OwnedRange {
  Range range;
  int rank = -1;
};

/// One part of the vector, and the ranks that share it: one rank of each of several groups.
struct Block {
  Range range;
  std::vector<int> ranks;
  std::vector<bool> original;  ///< by member: it is its group's only rank, so its elements are its input
};

/// Returns the ranges of the block after the reduce-scatter, each with the rank that has it. They are in ascending
/// order, and none is empty. After `oneshot` every rank has all.
std::vector<OwnedRange> shares(Algorithm algorithm, const Block& block);

/// Adds to `rounds` the messages and sums of member `me` in the reduce-scatter. `rounds` are rounds of one level, as
/// many as its collecting rounds or more.
void add_reduce_scatter(Algorithm algorithm, const Block& block, int me, Element element, std::span<Round> rounds);
/// Adds to `rounds` the messages of member `me` in the all-gather, which hands every range of shares() to all members.
void add_all_gather(Algorithm algorithm, const Block& block, int me, std::span<Round> rounds);

/// Adds the messages and sums of member `me` when member `owner` sums all members' versions of the block, in the
/// members' order. add_broadcast() adds the messages with which `owner` hands the block out. Each takes one round.
void add_reduce(const Block& block, int owner, int me, Element element, std::span<Round> rounds);
/// Adds the messages of member `me` when member `owner` hands the block out, in one round.
void add_broadcast(const Block& block, int owner, int me, std::span<Round> rounds);

}  // namespace spillway::ddl
