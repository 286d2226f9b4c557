#include "runtime/options/curvature_json.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

const json& member(const json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) throw BadRequest(str("a layer's curvature has no \"", key, "\""));
  return *found;
}

std::string text(const json& object, const std::string& key) {
  const json& value = member(object, key);
  if (!value.is_string()) throw BadRequest(str("\"", key, "\" of a layer's curvature is ", value.dump(), ", no text"));
  return value.get<std::string>();
}

kfac::LayerCurvature layer_from(const json& object) {
  if (!object.is_object()) throw BadRequest(str("a layer's curvature is ", object.dump(), ", no object"));
  return {.layer = text(object, "layer"),
          .samples = kfac::parse_factor_samples(text(object, "samples")),
          .rank = kfac::parse_eigen_rank(text(object, "rank")),
          .interval = whole_number(member(object, "interval"), "the interval of a layer's curvature", 1),
          .slot = whole_number(member(object, "slot"), "the slot of a layer's curvature")};
}

}  // namespace

json curvature_json(const std::vector<kfac::LayerCurvature>& layers) {
  json all = json::array();
  for (const auto& [layer, samples, rank, interval, slot] : layers)
    all.push_back({{"layer", layer},
                   {"samples", kfac::name(samples)},
                   {"rank", kfac::name(rank)},
                   {"interval", interval},
                   {"slot", slot}});
  return all;
}

std::vector<kfac::LayerCurvature> parse_curvature(std::string_view text) {
  const json parsed = parse_json(text);
  const json* list = &parsed;
  for (const char* key : {"kfac", "plan"})
    if (list->is_object() && list->contains(key)) list = &(*list)[key];
  if (!list->is_array() || list->empty())
    throw BadRequest(
        "there is no plan of layers' curvature: allowed is a list of them, or a result with \"kfac\", \"plan\"");
  std::vector<kfac::LayerCurvature> layers;
  for (const json& object : *list) layers.push_back(layer_from(object));
  kfac::validate(layers);
  return layers;
}

}  // namespace spillway::runtime
