/// Models that are cut over ranks: the choices, and their names. LibTorch-free.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

/// The order of a pipeline's work (pipe/schedules.h). No bit depends on it, but for chimera's other order of sums.
enum class PipelineSchedule : uint8_t {
  gpipe,
  one_forward_one_backward,
  interleaved,
  zero_bubble,
  chimera,
  automatic,  ///< the shortest of those that change no bit, by measured seconds of the model's parts
};

/// The steps in which K-FAC's layers are renewed.
enum class RefreshTurns : uint8_t {
  rolling,   ///< some layers in each step, in turn
  together,  ///< all layers from the statistics of one step, in the steps that follow
  at_once,   ///< all layers within one step
};

/// When a step does K-FAC's work; no bit depends on it.
enum class KfacWork : uint8_t {
  bubbles,  ///< while ranks wait
  after,    ///< after the step's passes
};

/// The names, as flags and results spell them. parse_…() throws BadRequest of the form "--schedule is 'x'; allowed is
/// …".
PipelineSchedule parse_schedule(std::string_view name);
RefreshTurns parse_refresh(std::string_view name);
KfacWork parse_kfac_work(std::string_view name);
std::string_view name(PipelineSchedule schedule);
std::string_view name(RefreshTurns turns);
std::string_view name(KfacWork work);
/// Return all names, with commas.
std::string schedule_names();
std::string refresh_names();
std::string kfac_work_names();

/// Returns the schedules that change no bit, in the order in which equals are preferred.
const std::vector<PipelineSchedule>& schedules_of_same_bits();

/// A model that is cut over ranks. OptimizerOptions::accumulate is the number of micro-batches.
struct PipelineOptions {
  static constexpr int64_t kMaxRanks = 1024;

  int64_t ranks = 1;  ///< ranks that a copy of the model is cut over; 1: it is whole
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int64_t chunks = 2;             ///< stages of a rank, with `interleaved`; ≥ 1
  std::vector<int64_t> cut = {};  ///< parts of each stage; empty: by measured seconds
  bool recompute = false;         ///< stages keep their inputs alone, and run forward again for backward; the same bits
  RefreshTurns refresh = RefreshTurns::rolling;
  KfacWork kfac_work = KfacWork::bubbles;
  /// K-FAC's inverse_interval is the least one whose refreshes the ranks' waits hold, by steps that are tried before
  /// the training (runtime/training/choose_interval.h). The interval that is given is tried first.
  bool choose_interval = false;

  /// Returns the ranks of a copy of the model that have a stage.
  int64_t holders() const { return schedule == PipelineSchedule::chimera ? 2 : 1; }
};

}  // namespace spillway
