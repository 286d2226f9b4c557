/// The algorithms of one reduce-scatter or all-gather among a few ranks.
#pragma once
#include <cstdint>
#include <string_view>

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

/// Returns the name: `direct`.
std::string_view name_of(Algorithm algorithm);
/// True when sums are taken in the members' order, for any part and any size. All such algorithms give the same bits.
bool keeps_order(Algorithm algorithm);

}  // namespace spillway::ddl
