#include "pipe/simulate.h"

#include <algorithm>
#include <numeric>

#include "pipe/horizon.h"

namespace spillway::pipe {

double SimulatedStep::utilization() const {
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  return seconds > 0 ? work / (seconds * static_cast<double>(busy.size())) : 0;
}

SimulatedStep simulate(const StepProgram& program, const Costs& costs) {
  const Horizon step(program, costs, 1);
  SimulatedStep result{.seconds = 0};
  for (int64_t rank = 0; rank < step.ranks(); ++rank) {
    std::vector<Span>& spans = result.spans.emplace_back();
    double busy = 0;
    int in_flight = 0, most = 0;
    for (size_t index : step.of_rank(rank)) {
      const Node& node = step.node(index);
      spans.push_back({node.item, node.begin, node.end});
      busy += node.seconds();
      result.seconds = std::max(result.seconds, node.end);
      if (node.item.work == Work::forward) most = std::max(most, ++in_flight);
      if (node.item.work == Work::backward || node.item.work == Work::weight_gradient) --in_flight;
    }
    result.busy.push_back(busy);
    result.in_flight.push_back(most);
  }
  return result;
}

}  // namespace spillway::pipe
