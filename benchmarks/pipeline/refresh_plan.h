/// The refresh of factors and inverses in the waits of an emulated pipeline.
#pragma once
#include <optional>
#include <vector>

#include "benchmarks/pipeline/emulated_pipeline.h"
#include "pipe/fill.h"
#include "pipe/rolling_refresh.h"

namespace spillway::tools {

/// How often layers are refreshed.
struct RefreshRate {
  int turns = 1;  ///< turns of each layer in a cycle
  int steps = 1;  ///< steps of the cycle
  /// Returns the steps from a layer's refresh to its next one, in the mean.
  double interval() const { return static_cast<double>(steps) / turns; }
};

struct RefreshOptions {
  bool rolling = true;               ///< layers in turn; false: all layers from one step
  std::optional<int> interval = {};  ///< steps between refreshes; nothing: as often as waits allow
  int staleness = 2;                 ///< with `rolling`, steps after which statistics serve
  int pieces = 1;                    ///< parts of an inversion that other work may come between
};

/// A refresh, and the cycle of steps whose waits it is done in.
struct RefreshPlan {
  RefreshRate rate = {};
  std::vector<pipe::Extra> extras = {};
  pipe::Filled filled = {};
};

/// A turn of a layer.
struct LayerTurn {
  size_t layer = 0;
  pipe::LayerRefresh turn = {};
};

/// The longest cycle that plan_refresh() looks at by itself.
inline constexpr int kMaxCycleSteps = 16;

/// Returns the turns of a cycle in which each layer has `rate.turns` turns. A layer's first one follows
/// pipe::rolling_refresh(), and its others are evenly apart. Throws as that.
std::vector<LayerTurn> rolling_turns(const EmulatedPipeline& pipeline, const RefreshRate& rate, int staleness);

/// Returns the work of these turns: the statistics of each factor and micro-batch, and the inversion of each factor
/// after all of its statistics. Copies of a stage share its inversions.
std::vector<pipe::Extra> refresh_work(const EmulatedPipeline& pipeline, const std::vector<LayerTurn>& turns,
                                      int pieces);

/// Plans a refresh. Without an interval it takes the highest rate whose work makes no cycle longer by more than a
/// thousandth. With `rolling` these are all rates of turns in cycles of up to kMaxCycleSteps steps, else whole numbers
/// of steps. Where no rate is that low, it takes one turn in kMaxCycleSteps steps. Throws BadRequest as pipe::fill().
RefreshPlan plan_refresh(const EmulatedPipeline& pipeline, const RefreshOptions& options);

}  // namespace spillway::tools
