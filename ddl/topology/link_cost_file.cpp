#include "ddl/topology/link_cost_file.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace spillway::ddl {
namespace {

using nlohmann::json;

/// The largest message in bytes. Ranks share costs as doubles, which hold every whole number up to this one; no message
/// is longer.
constexpr int64_t kMaxPiece = int64_t{1} << 53;

json to_json(const Costs& costs) {
  json levels = json::array();
  for (const auto& link : costs.levels)
    levels.push_back({{"latency_seconds", link.latency_seconds},
                      {"message_seconds", link.message_seconds},
                      {"bytes_per_second", link.bytes_per_second},
                      {"piece_bytes", link.segment_bytes},
                      {"by_cores", link.by_cores}});
  return {{"levels", levels}, {"reduce_seconds_per_byte", costs.reduce_seconds_per_byte}};
}

Costs from_json(const json& all) {
  Costs costs{.reduce_seconds_per_byte = all.at("reduce_seconds_per_byte")};
  for (const json& link : all.at("levels")) {
    const int64_t piece = whole_number(link.at("piece_bytes"), "piece_bytes");
    costs.levels.push_back({link.at("latency_seconds"), link.at("message_seconds"), link.at("bytes_per_second"),
                            piece > kMaxPiece ? kWhole : piece, link.at("by_cores")});
  }
  return costs;
}

}  // namespace

std::string format_link_costs(const json& of, const RememberedCosts& remembered) {
  return json_text({{"of", of}, {"measured_at", remembered.measured_at}, {"costs", to_json(remembered.costs)}}, 2) +
         "\n";
}

std::optional<RememberedCosts> parse_link_costs(std::string_view text, const json& of, const Levels& levels) {
  const json all = parse_json(text);
  try {
    if (all.at("of") != of) return std::nullopt;
    RememberedCosts remembered{from_json(all.at("costs")), whole_number(all.at("measured_at"), "measured_at")};
    remembered.costs.validate(levels);
    return remembered;
  } catch (const json::exception& error) {
    throw BadRequest(error.what());
  }
}

}  // namespace spillway::ddl
