#include "kfac/options.h"

#include <array>
#include <regex>
#include <utility>

#include "core/error.h"

namespace spillway::kfac {
namespace {

constexpr std::array<std::pair<std::string_view, Strategy>, 3> kStrategies{
    {{"comm_opt", Strategy::comm_opt}, {"mem_opt", Strategy::mem_opt}, {"hybrid", Strategy::hybrid}}};
constexpr std::array<std::pair<std::string_view, ConvFactors>, 3> kConvFactors{
    {{"full", ConvFactors::full}, {"separable", ConvFactors::separable}, {"auto", ConvFactors::automatic}}};

template <class Table>
auto value_named(const Table& table, std::string_view what, std::string_view text) {
  std::string known;
  for (const auto& [key, value] : table) {
    if (key == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  throw BadRequest(str("[kfac.options] ", what, " '", text, "' is not one of ", known));
}

template <class Table, class Value>
std::string_view name_of(const Table& table, Value wanted) {
  for (const auto& [key, value] : table)
    if (value == wanted) return key;
  return "?";
}

template <class Value>
void require(bool allowed, std::string_view field, Value value, std::string_view range) {
  if (!allowed) throw BadRequest(str("[kfac.options] ", field, " = ", value, " is outside ", range));
}

}  // namespace

Strategy strategy_named(std::string_view name) {
  return value_named(kStrategies, "strategy", name);
}
ConvFactors conv_factors_named(std::string_view name) {
  return value_named(kConvFactors, "conv_factors", name);
}
std::string_view name(Strategy strategy) {
  return name_of(kStrategies, strategy);
}
std::string_view name(ConvFactors form) {
  return name_of(kConvFactors, form);
}

void KfacOptions::validate() const {
  // Written so that NaN fails too.
  require(grad_worker_frac > 0 && grad_worker_frac <= 1, "grad_worker_frac", grad_worker_frac, "(0, 1]");
  require(factor_interval >= 1, "factor_interval", factor_interval, "1 and more steps");
  require(inverse_interval >= 1, "inverse_interval", inverse_interval, "1 and more steps");
  require(burn_in >= 0, "burn_in", burn_in, "0 and more steps");
  require(decay >= 0 && decay < 1, "decay", decay, "[0, 1)");
  require(relative_damping > 0, "relative_damping", relative_damping, "(0, inf)");
  require(!damping || *damping > 0, "damping", damping.value_or(0), "(0, inf)");
  // What a schedule gives later is checked when it is used.
  require(kl_clip.at(0) > 0, "kl_clip", kl_clip.at(0), "(0, inf]");
  require(lr.at(0) >= 0, "lr", lr.at(0), "[0, inf)");
  require(max_factor_dim >= 1, "max_factor_dim", max_factor_dim, "1 and more");
  require(max_linear_dim >= 1, "max_linear_dim", max_linear_dim, "1 and more");
  require(patch_workspace_bytes >= (1 << 16), "patch_workspace_bytes", patch_workspace_bytes, "65536 and more bytes");
  for (const auto& pattern : skip) {
    try {
      std::regex compiled(pattern);
    } catch (const std::regex_error& error) {
      throw BadRequest(str("[kfac.options] skip '", pattern, "' is not a regular expression: ", error.what()));
    }
  }
}

}  // namespace spillway::kfac
