/// The levels of a machine, which say which ranks are near each other, as a value that every rank computes alike.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::ddl {

/// A tree of groups. The groups of level 1 are ranks that talk fastest, for example those of a host. Each level joins
/// groups of the level below: hosts of a rack, then racks. The last level joins all. Groups may have any sizes and
/// their ranks any numbers.
class Levels {
 public:
  /// One group of a level.
  struct Group {
    std::vector<int> ranks;     ///< ascending
    std::vector<int> children;  ///< groups of the level below, in order of their first ranks; at level 1 ranks
  };

  /// Makes the tree from labels: `labels[i][r]` says, by any number, in which group of level i+1 rank r is. A level
  /// that joins all is added. Levels that join nothing are left out. Throws BadRequest when there are labels for
  /// another number of ranks, or when a level parts ranks that the level below joined.
  explicit Levels(int size, const std::vector<std::vector<int>>& labels = {});
  /// Parses a shape. `4x2` is 4 ranks on each of 2 hosts. `4x2x2` is two racks of these. `4+2` is 4 ranks on the first
  /// host and 2 on the second. Ranks are numbered in that order. Throws BadRequest when the text is malformed, or when
  /// it does not make `size` ranks (naming both numbers).
  static Levels parse(std::string_view text, int size);

  int size() const noexcept { return size_; }
  /// Returns how many levels join anything: 0 for a rank alone.
  int count() const noexcept { return std::ssize(groups_); }
  /// Returns the groups of a level from 1 … count(), in order of their first ranks.
  const std::vector<Group>& groups(int level) const { return groups_[level - 1]; }
  /// Returns the place of a rank's group in groups(level); at level 0 the rank itself.
  int group_of(int level, int rank) const;
  /// Returns the lowest level on which two ranks are together; 0 for one rank.
  int joining(int one, int other) const;

  /// Returns the tree as labels, for callers that group further.
  std::vector<std::vector<int>> labels() const;
  /// Returns the shape as text, `4x2`, `4+2`, `(2+1)+3`: the ranks of each group of level 1, by the groups above.
  std::string shape() const;
  /// Returns a hash that is equal on two ranks exactly when (except for a collision) their trees are equal.
  uint64_t hash() const;

 private:
  std::string shape_of(int level, int group) const;

  int size_;
  std::vector<std::vector<Group>> groups_;
  std::vector<std::vector<int>> group_of_;  ///< by level from 1, and rank
};

}  // namespace spillway::ddl
