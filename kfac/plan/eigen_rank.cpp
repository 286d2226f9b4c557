#include "kfac/plan/eigen_rank.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace spillway::kfac {
namespace {

struct AutomaticRule {
  int64_t least, side_per_rank;
};
constexpr AutomaticRule kOfLinear{16, 32}, kOfConvolution{64, 16};
constexpr int64_t kLeastAutomaticSide = 192;  // full bases of smaller sides cost little
constexpr int64_t kLeastSidePerRank = 3;

}  // namespace

int64_t EigenRank::within(int64_t side, bool is_convolution) const {
  if (is_full() || (rule_ == Rule::automatic && side < kLeastAutomaticSide)) return side;
  const auto [least, side_per_rank] = is_convolution ? kOfConvolution : kOfLinear;
  const int64_t rank = rule_ == Rule::fixed ? rank_ : std::max(least, side / side_per_rank);
  return rank <= side / kLeastSidePerRank ? rank : side;
}

void EigenRank::validate() const {
  if (rule_ == Rule::fixed && rank_ < 1)
    throw BadRequest(str("[kfac.options] eigen_rank = ", rank_, " is outside 1 and more"));
}

EigenRank parse_eigen_rank(std::string_view text) {
  if (text == "full") return EigenRank::full();
  if (text == "auto") return EigenRank::automatic();
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 1)
    throw BadRequest(str("[kfac.options] eigen_rank '", text, "' is not full, auto or a number of 1 and more"));
  return EigenRank::of(rank);
}

std::string name(EigenRank rank) {
  if (rank.rule_ == EigenRank::Rule::fixed) return std::to_string(rank.rank_);
  return rank.is_full() ? "full" : "auto";
}

}  // namespace spillway::kfac
