#include "runtime/pipeline/rank_times.h"

#include <nlohmann/json.hpp>
#include <string>

#include "ddl/comm/collectives.h"

namespace spillway::pipe {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageSeconds, forward, input_gradient, weight_gradient)
}

namespace spillway::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PieceTimes, step, stage, micro_batch, what, seconds, needs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTimes, place, is_timed, update, stages, pieces)

std::vector<RankTimes> gather_times(const RankTimes& own, ddl::Communicator& world) {
  std::vector<RankTimes> all;
  for (const std::string& text : ddl::gather_texts(world, nlohmann::json(own).dump()))
    all.push_back(nlohmann::json::parse(text).get<RankTimes>());
  return all;
}

}  // namespace spillway::runtime
