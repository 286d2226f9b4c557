/// The number of positions that a layer's factors are estimated from. LibTorch-free.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace spillway::kfac
