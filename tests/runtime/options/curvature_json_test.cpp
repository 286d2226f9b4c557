#include "runtime/options/curvature_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace spillway::runtime {
namespace {

const std::vector<kfac::LayerCurvature> kLayers{
    {"down0", kfac::FactorSamples::at_least(96), kfac::EigenRank::of(32), 6, 5},
    {"head \"1\"", kfac::FactorSamples::exact(), kfac::EigenRank::full(), 3, 0},
    {"up", kfac::FactorSamples::automatic(), kfac::EigenRank::automatic(), 1, 0}};

std::string refusal(std::string_view text) {
  try {
    parse_curvature(text);
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST(CurvatureJsonTest, ReadsWhatItWrote) {
  EXPECT_EQ(parse_curvature(curvature_json(kLayers).dump()), kLayers);
}

TEST(CurvatureJsonTest, FindsThePlanOfAResult) {
  const nlohmann::json result{{"losses", {1, 2}}, {"kfac", {{"layers", 3}, {"plan", curvature_json(kLayers)}}}};
  EXPECT_EQ(parse_curvature(result.dump()), kLayers);
  EXPECT_EQ(parse_curvature(nlohmann::json{{"plan", curvature_json(kLayers)}}.dump()), kLayers);
}

TEST(CurvatureJsonTest, RefusesWhatIsNoPlanByName) {
  const auto with = [](const std::string& key, const nlohmann::json& value) {
    auto plan = curvature_json(kLayers);
    plan[0][key] = value;
    return plan.dump();
  };
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"", "parse error"},
                                                        {"[]", "no plan"},
                                                        {"{\"kfac\": null}", "no plan"},
                                                        {"{\"kfac\": {\"plan\": null}}", "no plan"},
                                                        {"[3]", "no object"},
                                                        {"[{}]", "no \"layer\""},
                                                        {with("layer", 3), "no text"},
                                                        {with("samples", "0"), "factor_samples '0'"},
                                                        {with("rank", "-3"), "eigen_rank '-3'"},
                                                        {with("interval", 0), "interval"},
                                                        {with("interval", 1.5), "interval"},
                                                        {with("interval", 2000), "outside 1 to 1024"},
                                                        {with("slot", 6), "slot of layer 'down0' is 6, outside 0 to 5"},
                                                        {with("slot", -1), "slot"}})
    EXPECT_NE(refusal(text).find(part), std::string::npos) << text << ": " << refusal(text);
}

}  // namespace spillway::runtime
