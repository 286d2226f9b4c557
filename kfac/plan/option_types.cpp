#include "kfac/plan/option_types.h"

#include <array>
#include <string>
#include <utility>

#include "core/error.h"

namespace spillway::kfac {
namespace {

constexpr std::array<std::pair<std::string_view, Strategy>, 6> kStrategies{{{"comm_opt", Strategy::comm_opt},
                                                                            {"mem_opt", Strategy::mem_opt},
                                                                            {"hybrid", Strategy::hybrid},
                                                                            {"dp", Strategy::dp},
                                                                            {"owner_reduce", Strategy::owner_reduce},
                                                                            {"auto", Strategy::automatic}}};
constexpr std::array<std::pair<std::string_view, Placement>, 4> kPlacements{{{"round-robin", Placement::round_robin},
                                                                             {"lpt-time", Placement::lpt_time},
                                                                             {"lpt-memory", Placement::lpt_memory},
                                                                             {"measured", Placement::measured}}};
constexpr std::array<std::pair<std::string_view, FactorDtype>, 3> kFactorDtypes{
    {{"fp32", FactorDtype::fp32}, {"bf16", FactorDtype::bf16}, {"fp16", FactorDtype::fp16}}};
constexpr std::array<std::pair<std::string_view, ConvFactors>, 4> kConvFactors{{{"full", ConvFactors::full},
                                                                                {"separable", ConvFactors::separable},
                                                                                {"block", ConvFactors::block},
                                                                                {"auto", ConvFactors::automatic}}};
constexpr std::array<std::pair<std::string_view, Method>, 3> kMethods{
    {{"eigen", Method::eigen}, {"plain", Method::plain}, {"pi", Method::pi}}};
constexpr std::array<std::pair<std::string_view, Convention>, 3> kConventions{
    {{"fisher", Convention::fisher}, {"kaisa", Convention::kaisa}, {"dp_kfac", Convention::dp_kfac}}};

template <class Table>
auto parse_value(const Table& table, std::string_view what, std::string_view text) {
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

}  // namespace

Strategy parse_strategy(std::string_view name) {
  return parse_value(kStrategies, "strategy", name);
}
Placement parse_placement(std::string_view name) {
  return parse_value(kPlacements, "placement", name);
}
FactorDtype parse_factor_dtype(std::string_view name) {
  return parse_value(kFactorDtypes, "type of factors", name);
}
ConvFactors parse_conv_factors(std::string_view name) {
  return parse_value(kConvFactors, "conv_factors", name);
}
Method parse_method(std::string_view name) {
  return parse_value(kMethods, "method", name);
}
Convention parse_convention(std::string_view name) {
  return parse_value(kConventions, "convention", name);
}
std::string_view name(Strategy strategy) {
  return name_of(kStrategies, strategy);
}
std::string_view name(Placement placement) {
  return name_of(kPlacements, placement);
}
std::string_view name(FactorDtype dtype) {
  return name_of(kFactorDtypes, dtype);
}
std::string_view name(ConvFactors form) {
  return name_of(kConvFactors, form);
}
std::string_view name(Method method) {
  return name_of(kMethods, method);
}
std::string_view name(Convention convention) {
  return name_of(kConventions, convention);
}

}  // namespace spillway::kfac
