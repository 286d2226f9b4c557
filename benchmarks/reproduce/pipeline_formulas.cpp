#include "benchmarks/reproduce/pipeline_formulas.h"

#include <utility>

#include "core/error.h"

namespace spillway::runtime {
namespace {

void check(const PipelineShape& shape) {
  if (shape.stages < 1 || shape.micro_batches < 1 || shape.copies < 1)
    throw BadRequest(str("a pipeline of ", shape.stages, " stages, ", shape.micro_batches, " micro-batches and ",
                         shape.copies, " copies; allowed: 1 or more of each"));
  if (shape.order == PublishedOrder::chimera && (shape.stages % 2 != 0 || shape.micro_batches % shape.stages != 0))
    throw BadRequest(str("Chimera with ", shape.stages, " stages and ", shape.micro_batches,
                         " micro-batches; allowed: an even number, and a multiple of it"));
}

/// Returns C_f and C_b, the forwards and backwards on the critical path.
std::pair<double, double> critical_path(const PipelineShape& shape) {
  const double d = shape.stages, n = shape.micro_batches;
  if (shape.order == PublishedOrder::gpipe_or_1f1b) return {n + d - 1, n + d - 1};
  if (shape.micro_batches == shape.stages) return {d, 2 * d - 2};
  return {n + d / 2 - 1, n + d / 2 - 1};
}

}  // namespace

PipelineStep published_step(const PipelineShape& shape, const BlockTimes& block) {
  check(shape);
  const auto [forwards, backwards] = critical_path(shape);
  const double backward = block.backward + (shape.recompute ? block.forward : 0);
  const double pipeline = forwards * block.forward + backwards * backward;
  return {.pipeline = pipeline,
          .bubble = pipeline - shape.micro_batches * (block.forward + backward),
          .refresh = shape.micro_batches * block.statistics + block.inversion / shape.copies,
          .preconditioning = block.preconditioning};
}

}  // namespace spillway::runtime
