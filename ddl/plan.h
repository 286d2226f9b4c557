/// Who reduces what: the levels of an allreduce, as a value that every rank computes alike.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::ddl {

/// Elements [begin, end) of a vector.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const noexcept { return end - begin; }
};

/// Two levels: the ranks of a host, and the hosts. Level 1 cuts a vector into as many pieces as the host has ranks;
/// each rank sums its piece over its host. Level 2 cuts again: every host is home to 1/N of each piece, sums that part
/// over all hosts, and hands it back. So 2(N-1)/N of the vector leaves each host (the cut bound), spread evenly over
/// the host's ranks, whatever the order of ranks and whether or not hosts have the same number of them.
///
/// With uneven hosts pieces of different hosts do not coincide. The cuts of all hosts together make blocks: within a
/// block every host has one rank in charge. 4+2 ranks: blocks are quarters; on the second host each rank has two.
class Plan {
 public:
  /// `hosts[r]` is the host of rank r, numbered from 0 without gaps. Deterministic. Cost: O(ranks + blocks).
  explicit Plan(std::vector<int> hosts);

  int size() const noexcept { return static_cast<int>(hosts_.size()); }
  int host_count() const noexcept { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return hosts_[rank]; }
  /// The ranks of a host, ascending; a rank's place in this list is its local rank.
  const std::vector<int>& ranks_of(int host) const { return ranks_[host]; }
  int local_rank_of(int rank) const { return local_ranks_[rank]; }
  /// How many levels move data: 0 alone, 1 on one host or with one rank per host, else 2.
  int levels() const noexcept;
  /// This level's number in messages, from 1 to levels().
  int host_level() const noexcept { return 1; }
  int cross_level() const noexcept { return levels(); }

  int64_t block_count() const noexcept { return static_cast<int64_t>(cuts_.size()) - 1; }
  /// The piece of local rank `local` of `host` in a vector of `count` elements: whole blocks, contiguous.
  Range piece(int host, int local, int64_t count) const;
  /// The blocks that make up that piece.
  Range blocks_of(int host, int local) const;
  /// The part of `block` that `host` is home to.
  Range part(int64_t block, int host, int64_t count) const;
  /// The rank of `host` in charge of `block`.
  int in_charge(int host, int64_t block) const { return in_charge_[host][block]; }
  /// The most elements that any rank receives at once into scratch, for a vector of `count`.
  int64_t scratch_elements(int64_t count) const;

  /// Equal on two ranks exactly when (but for a collision) their plans are.
  uint64_t hash() const;
  /// `4+2`: the ranks per host.
  std::string shape() const;
  /// What each level does with `bytes` bytes, and how much of it crosses each link, in a few lines for people.
  std::string explain(int64_t bytes) const;

 private:
  /// A place in any vector, as a fraction of its length.
  struct Cut {
    int64_t numerator;
    int64_t denominator;
    int64_t in(int64_t count) const;
  };

  std::vector<int> hosts_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> local_ranks_;
  std::vector<Cut> cuts_;  // ascending, from 0/1 to 1/1
  std::vector<std::vector<int>> in_charge_;
};

/// The host of each rank by a declaration, for CommOptions::hosts: `4x2` is 4 ranks on each of 2 hosts (further levels,
/// `4x2x2`, multiply the hosts), `4+2` is 4 ranks on the first and 2 on the second; ranks in host order.
/// Throws BadRequest when the text is malformed, or does not make `world_size` ranks (naming both numbers).
std::vector<int> parse_levels(std::string_view text, int world_size);

}  // namespace spillway::ddl
