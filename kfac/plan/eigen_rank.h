/// The number of eigenvectors that are kept of a factor. LibTorch-free.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::kfac {

/// The rank of the eigenbases (changes the result). A basis of rank r keeps the r leading eigenvectors of a factor, and
/// one number for the rest of its space, their mean eigenvalue (kfac/inverse/eigenbasis.h). A factor whose side is not
/// well above the rank, less than thrice, keeps all of them.
class EigenRank {
 public:
  /// All eigenvectors.
  static constexpr EigenRank full() { return EigenRank(Rule::full, 0); }
  /// All eigenvectors of sides below 192. Above, a basis keeps a sixteenth of a convolution's side, and at least 64. It
  /// keeps a thirty-second of a Linear's, and at least 16, because an update has fewer rows there.
  static constexpr EigenRank automatic() { return EigenRank(Rule::automatic, 0); }
  /// At most `rank` of a side of three times that and more.
  static constexpr EigenRank of(int64_t rank) { return EigenRank(Rule::fixed, rank); }

  bool is_full() const { return rule_ == Rule::full; }
  /// Returns the rank of the basis of a factor of `side`: `side` itself where all eigenvectors are kept.
  int64_t within(int64_t side, bool is_convolution) const;
  /// Throws BadRequest for a rank below 1.
  void validate() const;

  bool operator==(const EigenRank&) const = default;

 private:
  enum class Rule : uint8_t { full, automatic, fixed };
  constexpr EigenRank(Rule rule, int64_t rank) : rule_(rule), rank_(rank) {}

  friend std::string name(EigenRank rank);
  Rule rule_;
  int64_t rank_;
};

/// Reads `full`, `auto` or a number of 1 and more. Throws BadRequest naming the value and what is allowed.
EigenRank parse_eigen_rank(std::string_view text);
std::string name(EigenRank rank);  ///< the text that parse_eigen_rank() reads

}  // namespace spillway::kfac
