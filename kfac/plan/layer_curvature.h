/// The rows, the rank and the steps of each layer's curvature. LibTorch-free.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::kfac {

/// The number of positions over which an update sums a factor of a layer's inputs (changes the result).
/// kfac/factors/lattice.h says which.
class FactorSamples {
 public:
  /// All positions.
  static FactorSamples exact() { return FactorSamples(Rule::exact, 0); }
  /// At least a position for every second row of a factor, and at least 384; all where a lattice would leave fewer. A
  /// running average sums over several updates, so that it has more rows than that.
  static FactorSamples automatic() { return FactorSamples(Rule::automatic, 0); }
  /// At least `positions`; all where a lattice would leave fewer.
  static FactorSamples at_least(int64_t positions) { return FactorSamples(Rule::fixed, positions); }

  bool is_exact() const { return rule_ == Rule::exact; }
  /// Returns the number given to at_least(), if that made it.
  std::optional<int64_t> positions() const { return rule_ == Rule::fixed ? std::optional(positions_) : std::nullopt; }
  /// Returns the fewest positions that a factor of `side` rows is estimated from. Not for exact().
  int64_t fewest(int64_t side) const;

  bool operator==(const FactorSamples&) const = default;

 private:
  enum class Rule : uint8_t { exact, automatic, fixed };
  FactorSamples(Rule rule, int64_t positions) : rule_(rule), positions_(positions) {}

  Rule rule_;
  int64_t positions_;
};

/// Reads `exact`, `auto` or a number of 1 and more. Throws BadRequest naming the value and what is allowed.
FactorSamples parse_factor_samples(std::string_view text);
std::string name(FactorSamples samples);  ///< the text that parse_factor_samples() reads

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

/// The curvature of one layer. Its factors are updated and decomposed together: in step 0, and then in every step t
/// with t mod `interval` = `slot`.
struct LayerCurvature {
  std::string layer;  ///< name of the layer
  FactorSamples samples = FactorSamples::automatic();
  EigenRank rank = EigenRank::automatic();
  int64_t interval = 1;  ///< steps between updates, ≥ 1
  int64_t slot = 0;      ///< the step of an interval that updates, 0 to interval − 1

  bool is_due(int64_t step) const { return step == 0 || step % interval == slot; }
  bool operator==(const LayerCurvature&) const = default;
};

/// The longest cycle of steps after which all intervals of a model begin anew.
inline constexpr int64_t kMaxCycle = 1024;

/// Throws BadRequest naming the layer, the field and the allowed range. The least common multiple of the intervals may
/// be kMaxCycle at most, because each step of a cycle is a kind of step of its own.
void validate(const std::vector<LayerCurvature>& layers);

}  // namespace spillway::kfac
