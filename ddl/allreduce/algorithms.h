/// One reduce-scatter or all-gather among a few ranks: the published algorithms as rounds.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ddl/allreduce/program.h"

namespace spillway::ddl {

/// How the members of a group, n of them, share S bytes. Each has a link of its own to the others.
enum class Algorithm : uint8_t {
  /// Every member sends every other one its part: 1 round, n−1 messages of S/n. Sums in the members' order.
  direct,
  /// Parts go around, growing: n−1 rounds of S/n. Sums of different parts begin at different members.
  ring,
  /// Halves are swapped with ever nearer members: log2 n rounds of S/2, S/4, … (Thakur et al. 2005). Where n is no
  /// power of two, the members beyond one first hand all they have to others: one round of S more.
  halving,
  /// The first member gets everything: 1 round of n−1 messages of S. Sums in the members' order.
  leader,
  /// Every member sends every other one everything, and each sums all: 1 round of n−1 messages of S, and none to hand
  /// results out, so the last level's only. The least latency there is; with two members no more bytes than direct.
  /// Sums in the members' order.
  oneshot
};

std::string_view name_of(Algorithm algorithm);
/// Rounds among n members, to collect and to hand out.
int collecting_rounds_of(Algorithm algorithm, int members);
int gathering_rounds_of(Algorithm algorithm, int members);
/// Whether sums are taken in the members' order, whatever the part and the size. All such algorithms give the same
/// bits.
bool keeps_order(Algorithm algorithm);

/// A part of the vector, and the rank that has what its group made of it.
struct Share {
  Range range;
  int rank = -1;
};

/// One part of the vector, and who shares it: one rank of each of several groups.
struct Block {
  Range range;
  std::vector<int> ranks;
  std::vector<bool> original;  ///< by member: it alone is its group, and what it has is its input
};

/// Who has what of the block after the reduce-scatter: in ascending order, nothing empty; after `oneshot` everyone all.
std::vector<Share> shares(Algorithm algorithm, const Block& block);

/// Adds to `rounds` (of a level; as many as its collecting rounds or more) what member `me` does in the reduce-scatter.
void add_reduce_scatter(Algorithm algorithm, const Block& block, int me, Element element, std::span<Round> rounds);
/// The same for the all-gather, in which everybody gets what shares() says who has.
void add_all_gather(Algorithm algorithm, const Block& block, int me, std::span<Round> rounds);

/// What member `me` does where everybody's versions of the block are summed by member `home`, in the members' order,
/// and where that one hands it out: one round each.
void add_reduce(const Block& block, int home, int me, Element element, std::span<Round> rounds);
void add_broadcast(const Block& block, int home, int me, std::span<Round> rounds);

}  // namespace spillway::ddl
