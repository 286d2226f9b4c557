#include "kfac/plan/layer_curvature.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/parse_number.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kRowsPerPosition = 2;
constexpr int64_t kFewest = 384;

struct AutomaticRule {
  int64_t least, side_per_rank;
};
constexpr AutomaticRule kOfLinear{16, 32}, kOfConvolution{64, 16};
constexpr int64_t kMinAutomaticSide = 192;  // full bases of smaller sides cost little
constexpr int64_t kMinSidePerRank = 3;

}  // namespace

int64_t FactorSamples::fewest(int64_t side) const {
  return positions().value_or(std::max(kFewest, side / kRowsPerPosition));
}

FactorSamples parse_factor_samples(std::string_view text) {
  if (text == "exact") return FactorSamples::exact();
  if (text == "auto") return FactorSamples::automatic();
  if (const auto positions = parse_number<int64_t>(text); positions >= 1) return FactorSamples::at_least(*positions);
  throw BadRequest(str("[kfac.options] factor_samples '", text, "' is not exact, auto or a number of 1 and more"));
}

std::string name(FactorSamples samples) {
  if (const auto positions = samples.positions()) return std::to_string(*positions);
  return samples.is_exact() ? "exact" : "auto";
}

int64_t EigenRank::within(int64_t side, bool is_convolution) const {
  if (is_full() || (rule_ == Rule::automatic && side < kMinAutomaticSide)) return side;
  const auto [least, side_per_rank] = is_convolution ? kOfConvolution : kOfLinear;
  const int64_t rank = rule_ == Rule::fixed ? rank_ : std::max(least, side / side_per_rank);
  return rank <= side / kMinSidePerRank ? rank : side;
}

void EigenRank::validate() const {
  if (rule_ == Rule::fixed && rank_ < 1)
    throw BadRequest(str("[kfac.options] eigen_rank = ", rank_, " is outside 1 and more"));
}

EigenRank parse_eigen_rank(std::string_view text) {
  if (text == "full") return EigenRank::full();
  if (text == "auto") return EigenRank::automatic();
  if (const auto rank = parse_number<int64_t>(text); rank >= 1) return EigenRank::of(*rank);
  throw BadRequest(str("[kfac.options] eigen_rank '", text, "' is not full, auto or a number of 1 and more"));
}

std::string name(EigenRank rank) {
  if (rank.rule_ == EigenRank::Rule::fixed) return std::to_string(rank.rank_);
  return rank.is_full() ? "full" : "auto";
}

void validate(const std::vector<LayerCurvature>& layers) {
  int64_t cycle = 1;
  for (const auto& curvature : layers) {
    const int64_t interval = curvature.interval, slot = curvature.slot,
                  samples = curvature.samples.positions().value_or(1);
    const auto refuse = [&](std::string_view field, int64_t value, const std::string& range) {
      throw BadRequest(
          str("[kfac.options] the ", field, " of layer '", curvature.layer, "' is ", value, ", outside ", range));
    };
    if (interval < 1 || interval > kMaxCycle) refuse("interval", interval, str("1 to ", kMaxCycle, " steps"));
    if (slot < 0 || slot >= interval) refuse("slot", slot, str("0 to ", interval - 1));
    if (samples < 1) refuse("samples", samples, "1 and more positions");
    curvature.rank.validate();
    cycle = std::lcm(cycle, interval);
    if (cycle > kMaxCycle)
      refuse("interval", interval, str("those whose cycle with the intervals before is at most ", kMaxCycle));
  }
}

}  // namespace spillway::kfac
