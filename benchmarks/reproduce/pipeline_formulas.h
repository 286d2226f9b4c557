/// Published formulas of a pipeline's step, with K-FAC in its waits.
///
/// Source: Osawa, Li, Hoefler, PipeFisher (2023). Messages and collectives take no time. A step lasts from flush to
/// flush. Stages are one block; a stage of more blocks takes so many times as long, and no ratio below changes.
#pragma once
#include <cstdint>

#include "runtime/planning/block_times.h"

namespace spillway::runtime {

/// The orders of a step's items that have formulas.
enum class PublishedOrder : uint8_t { gpipe_or_1f1b, chimera };

/// A pipeline of equal stages.
struct PipelineShape {
  PublishedOrder order = PublishedOrder::gpipe_or_1f1b;
  int stages = 4;          ///< D; with Chimera an even number
  int micro_batches = 4;   ///< N, of a rank and step; with Chimera a multiple of D
  bool recompute = false;  ///< each backward begins with the forward again
  int copies = 1;          ///< W data-parallel copies, which share a stage's inversions
};

/// Milliseconds of a step.
struct PipelineStep {
  double pipeline = 0;         ///< T_pipe: all forwards and backwards, with waits
  double bubble = 0;           ///< T_bubble: the wait of a rank
  double refresh = 0;          ///< N T_curv + T_inv / W: a rank's work of one refresh
  double preconditioning = 0;  ///< T_prec, which no wait hides

  /// Returns r, the steps whose waits hold a refresh.
  double refresh_steps() const { return refresh / bubble; }
  /// Returns the time that preconditioning adds to a step, as a share of it.
  double added_share() const { return preconditioning / pipeline; }
  /// Returns how many times as long a step takes where the same refresh every r steps is outside the waits
  /// (K-FAC+skip): (N T_curv + T_inv / W) / r, which is T_bubble, comes to each step.
  double gain_over_skip() const { return 1 + bubble / (pipeline + preconditioning); }
};

/// Returns T_pipe = C_f T_f + C_b T_b and its parts. GPipe and 1F1B have C_f = C_b = N + D − 1. Chimera has C_f = D and
/// C_b = 2 D − 2 where N = D, and N + D/2 − 1 for both where N is more. Throws BadRequest where a number of the shape
/// is outside its range.
PipelineStep published_step(const PipelineShape& shape, const BlockTimes& block);

}  // namespace spillway::runtime
