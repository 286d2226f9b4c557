/// A pipeline whose items take given times.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "benchmarks/pipeline/block_list.h"
#include "pipe/costs.h"
#include "pipe/program.h"

namespace spillway::tools {

/// The schedules that a benchmark can emulate.
inline constexpr std::array<const char*, 5> kSchedules{"gpipe", "1f1b", "interleaved", "zb-h1", "chimera"};

struct PipelineShape {
  int ranks = 4;
  int micro_batches = 4;
  int chunks = 2;  ///< stages of a rank, with interleaved
};

/// One of the two factors of a layer.
struct FactorSeconds {
  double statistics = 0;  ///< products for a micro-batch
  double inversion = 0;
};

/// A layer with factors: one of a block's matrices.
struct EmulatedLayer {
  int stage = 0;
  FactorSeconds input, output;  ///< factors of its inputs, and of the gradients of its outputs
};

struct EmulatedPipeline {
  std::string schedule;
  pipe::StepProgram program;
  pipe::Costs costs;
  std::vector<EmulatedLayer> layers = {};  ///< in the model's order

  int ranks() const { return static_cast<int>(program.items.size()); }
  /// Returns the seconds of all statistics and inversions of one refresh.
  double refresh_seconds() const;
};

/// Returns the program of a schedule. Throws BadRequest naming the schedule when it is not known, or takes no such
/// number of ranks or micro-batches.
pipe::StepProgram program_of(const std::string& schedule, const PipelineShape& shape);

/// Cuts the blocks into the schedule's stages. Items take `scale` times the blocks' times. Half of a backward is the
/// gradients of weights. A block's statistics are divided over its factors by their sides squared, and its inversion by
/// their sides cubed, as in a transformer. Every update takes the time of the rank that has most to precondition;
/// copies of a stage share that. Messages take no time. Throws BadRequest as program_of(), and where there are fewer
/// blocks than stages.
EmulatedPipeline emulate(const std::string& schedule, const PipelineShape& shape, const BlockList& model, double scale);

}  // namespace spillway::tools
