#include "benchmarks/pipeline/emulated_pipeline.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "pipe/cut.h"
#include "pipe/schedules.h"

namespace spillway::tools {
namespace {

using runtime::BlockTimes;
using runtime::kInputSides;
using runtime::kOutputSides;

/// Adds the layers of a block, whose times are in seconds.
void add_layers(const BlockTimes& block, int stage, std::vector<EmulatedLayer>& layers) {
  double squares = 0, cubes = 0;
  for (const auto& sides : {kInputSides, kOutputSides})
    for (double side : sides) squares += side * side, cubes += side * side * side;
  const auto factor = [&](double side) {
    return FactorSeconds{block.statistics * side * side / squares, block.inversion * side * side * side / cubes};
  };
  for (size_t i = 0; i < kInputSides.size(); ++i)
    layers.push_back({stage, factor(kInputSides[i]), factor(kOutputSides[i])});
}

BlockTimes in_seconds(const BlockTimes& block, double scale) {
  const double factor = scale / 1000;
  return {block.forward * factor, block.backward * factor, block.statistics * factor, block.inversion * factor,
          block.preconditioning * factor};
}

}  // namespace

double EmulatedPipeline::refresh_seconds() const {
  double sum = 0;
  for (const EmulatedLayer& layer : layers)
    for (const FactorSeconds& factor : {layer.input, layer.output})
      sum += program.micro_batches() * factor.statistics + factor.inversion;
  return sum;
}

pipe::StepProgram program_of(const std::string& schedule, const PipelineShape& shape) {
  if (schedule == "gpipe") return pipe::gpipe(shape.ranks, shape.micro_batches);
  if (schedule == "1f1b") return pipe::one_forward_one_backward(shape.ranks, shape.micro_batches);
  if (schedule == "interleaved") return pipe::interleaved(shape.ranks, shape.micro_batches, shape.chunks);
  if (schedule == "zb-h1") return pipe::zero_bubble(shape.ranks, shape.micro_batches);
  if (schedule == "chimera") return pipe::chimera(shape.ranks, shape.micro_batches);
  std::string known;
  for (const char* name : kSchedules) known += str(known.empty() ? "" : ", ", name);
  throw BadRequest(str("--schedules: '", schedule, "'; allowed: ", known));
}

EmulatedPipeline emulate(const std::string& schedule, const PipelineShape& shape, const BlockList& model,
                         double scale) {
  EmulatedPipeline pipeline{.schedule = schedule, .program = program_of(schedule, shape), .costs = {}};
  pipe::check(pipeline.program);
  const pipe::Graph& graph = pipeline.program.graph;
  std::vector<pipe::Part> parts;
  for (const BlockTimes& block : model.blocks) parts.push_back({.seconds = block.forward + block.backward});
  const std::vector<int> cut = pipe::cut(parts, graph.stages);
  std::vector<double> updates(graph.ranks(), 0);
  auto block = model.blocks.begin();
  for (int stage = 0; stage < graph.stages; ++stage) {
    pipe::StageSeconds& seconds = pipeline.costs.stages.emplace_back();
    for (int i = 0; i < cut[stage]; ++i, ++block) {
      const BlockTimes times = in_seconds(*block, scale);
      seconds.forward += times.forward;
      seconds.input_gradient += times.backward / 2;
      seconds.weight_gradient += times.backward / 2;
      for (const std::vector<int>& rank_of : graph.rank_of)
        updates[rank_of[stage]] += times.preconditioning / static_cast<double>(graph.rank_of.size());
      add_layers(times, stage, pipeline.layers);
    }
  }
  pipeline.costs.update = *std::max_element(updates.begin(), updates.end());
  return pipeline;
}

}  // namespace spillway::tools
