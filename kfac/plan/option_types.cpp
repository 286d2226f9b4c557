#include "kfac/plan/option_types.h"

#include "core/value_names.h"

namespace spillway::kfac {
namespace {

constexpr auto kStrategies = value_names<Strategy>({{Strategy::comm_opt, "comm_opt"},
                                                    {Strategy::mem_opt, "mem_opt"},
                                                    {Strategy::hybrid, "hybrid"},
                                                    {Strategy::dp, "dp"},
                                                    {Strategy::owner_reduce, "owner_reduce"},
                                                    {Strategy::automatic, "auto"}});
constexpr auto kPlacements = value_names<Placement>({{Placement::round_robin, "round-robin"},
                                                     {Placement::lpt_time, "lpt-time"},
                                                     {Placement::lpt_memory, "lpt-memory"},
                                                     {Placement::measured, "measured"}});
constexpr auto kFactorDtypes =
    value_names<FactorDtype>({{FactorDtype::fp32, "fp32"}, {FactorDtype::bf16, "bf16"}, {FactorDtype::fp16, "fp16"}});
constexpr auto kConvFactors = value_names<ConvFactors>({{ConvFactors::full, "full"},
                                                        {ConvFactors::separable, "separable"},
                                                        {ConvFactors::block, "block"},
                                                        {ConvFactors::automatic, "auto"}});
constexpr auto kMethods = value_names<Method>({{Method::eigen, "eigen"}, {Method::plain, "plain"}, {Method::pi, "pi"}});
constexpr auto kConventions = value_names<Convention>(
    {{Convention::fisher, "fisher"}, {Convention::kaisa, "kaisa"}, {Convention::dp_kfac, "dp_kfac"}});
constexpr auto kDampingScopes =
    value_names<DampingScope>({{DampingScope::layer, "layer"}, {DampingScope::network, "network"}});

template <class Names>
auto parse_value(const Names& names, std::string_view what, std::string_view text) {
  if (const auto value = names.find(text)) return *value;
  throw BadRequest(str("[kfac.options] ", what, " '", text, "' is not one of ", names.list()));
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
DampingScope parse_damping_scope(std::string_view name) {
  return parse_value(kDampingScopes, "damping_scope", name);
}
std::string_view name(Strategy strategy) {
  return kStrategies.name(strategy);
}
std::string_view name(Placement placement) {
  return kPlacements.name(placement);
}
std::string_view name(FactorDtype dtype) {
  return kFactorDtypes.name(dtype);
}
std::string_view name(ConvFactors form) {
  return kConvFactors.name(form);
}
std::string_view name(Method method) {
  return kMethods.name(method);
}
std::string_view name(Convention convention) {
  return kConventions.name(convention);
}
std::string_view name(DampingScope scope) {
  return kDampingScopes.name(scope);
}

}  // namespace spillway::kfac
