/// The file in which the costs of links are remembered.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ddl/allreduce/cost_model.h"

namespace spillway::ddl {

struct RememberedCosts {
  Costs costs;
  int64_t measured_at = 0;  ///< seconds since 1970
};

/// Returns the text of a file: {of, measured_at, costs: {levels: [{latency_seconds message_seconds bytes_per_second
/// piece_bytes by_cores}] reduce_seconds_per_byte}}. `of` describes the links that have these costs.
std::string format_link_costs(const nlohmann::json& of, const RememberedCosts& remembered);

/// Returns the costs in a file's text; nothing where they are for another description than `of`. Throws BadRequest when
/// the text is none that format_link_costs() makes, or its costs are not for `levels`.
std::optional<RememberedCosts> parse_link_costs(std::string_view text, const nlohmann::json& of, const Levels& levels);

}  // namespace spillway::ddl
