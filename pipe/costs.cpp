#include "pipe/costs.h"

namespace spillway::pipe {

double seconds_of(const Item& item, const Costs& costs) {
  if (item.work == Work::update) return costs.update;
  const StageSeconds& stage = costs.stages[item.stage];
  switch (item.work) {
    case Work::forward:
      return stage.forward;
    case Work::input_gradient:
      return stage.input_gradient;
    case Work::weight_gradient:
      return stage.weight_gradient;
    default:
      return stage.backward();
  }
}

Costs equal_stages(int stages, double forward, double backward, double weight_share) {
  const StageSeconds stage{forward, backward * (1 - weight_share), backward * weight_share};
  return {.stages = std::vector<StageSeconds>(stages, stage)};
}

}  // namespace spillway::pipe
