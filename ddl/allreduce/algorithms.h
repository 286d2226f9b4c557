/// One reduce-scatter or all-gather among a few ranks: the published algorithms as rounds.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ddl/allreduce/program.h"

namespace spillway::ddl {

/// The way in which the n members of a group share S bytes. Each member has a link of its own to the others.
enum class Algorithm : uint8_t {
  /// Every member sends every other one its part: 1 round, n−1 messages of S/n. Sums are taken in the members' order.
  direct,
  /// Parts go around the members, each of which adds its elements: n−1 rounds of S/n. Sums of different parts begin at
  /// different members.
  ring,
  /// Halves are swapped with ever nearer members: log2 n rounds of S/2, S/4, … (Thakur et al. 2005). When n is no power
  /// of two, the members beyond one first hand all their elements to other members: one round of S more.
  halving,
  /// The first member gets everything: 1 round of n−1 messages of S. Sums are taken in the members' order.
  leader,
  /// Every member sends every other one everything, and each sums all: 1 round of n−1 messages of S. There is no round
  /// to hand results out, so only the last level may use it. No algorithm has a lower latency. With two members it
  /// moves no more bytes than direct. Sums are taken in the members' order.
  oneshot
};

std::string_view name_of(Algorithm algorithm);
/// Returns the rounds in which n members collect. gathering_rounds_of() returns those in which they hand results out.
int collecting_rounds_of(Algorithm algorithm, int members);
int gathering_rounds_of(Algorithm algorithm, int members);
/// True when sums are taken in the members' order, for any part and any size. All such algorithms give the same bits.
bool keeps_order(Algorithm algorithm);

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
void add_broadcast(const Block& block, int owner, int me, std::span<Round> rounds);

}  // namespace spillway::ddl
