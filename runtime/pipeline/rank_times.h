/// The times that ranks of a pipeline tell each other, for a plan of their bubbles.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/refresh_work.h"
#include "pipe/costs.h"

namespace spillway::ddl {
class Communicator;
}

namespace spillway::runtime {

/// A piece of K-FAC's work in a cycle, and the time that it took.
struct PieceTimes {
  int step = 0;                       ///< step of the cycle that its statistics are of
  int stage = 0;                      ///< stage of its layers
  int micro_batch = 0;                ///< the micro-batch after whose backward it may begin
  kfac::RefreshWork::What what = {};  ///< kind of work
  double seconds = 0;                 ///< the time that it took last
  std::vector<int> needs = {};        ///< pieces that it comes after, by number within the step
};

/// The times of a rank, in means over a cycle or several.
struct RankTimes {
  int place = 0;         ///< place of the rank in the pipeline
  bool is_timed = true;  ///< false where a piece has not been timed; `pieces` are then incomplete
  double update = 0;     ///< seconds that follow a step's passes
  std::vector<pipe::StageSeconds> stages = {};  ///< by stage of the model; zeros for other ranks' stages
  std::vector<PieceTimes> pieces = {};          ///< by step
};

/// Returns the times of all ranks, in rank order. Collective. Throws CommError.
std::vector<RankTimes> gather_times(const RankTimes& own, ddl::Communicator& world);

}  // namespace spillway::runtime
