#include "kfac/plan/factor_samples.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kRowsPerPosition = 2;
constexpr int64_t kFewest = 384;

}  // namespace

int64_t FactorSamples::fewest(int64_t side) const {
  return positions().value_or(std::max(kFewest, side / kRowsPerPosition));
}

FactorSamples parse_factor_samples(std::string_view text) {
  if (text == "exact") return FactorSamples::exact();
  if (text == "auto") return FactorSamples::automatic();
  int64_t positions = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), positions);
  if (error != std::errc() || end != text.data() + text.size() || positions < 1)
    throw BadRequest(str("[kfac.options] factor_samples '", text, "' is not exact, auto or a number of 1 and more"));
  return FactorSamples::at_least(positions);
}

std::string name(FactorSamples samples) {
  if (const auto positions = samples.positions()) return std::to_string(*positions);
  return samples.is_exact() ? "exact" : "auto";
}

}  // namespace spillway::kfac
