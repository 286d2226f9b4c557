/// A refresh of some layers' curvature that is under way.
#pragma once
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kfac/inverse/panel_inverse.h"
#include "kfac/inverse/truncated_eigenbasis.h"
#include "kfac/plan/refresh_work.h"
#include "kfac/refresh/step_damping.h"

namespace spillway::kfac {

/// The renewal of a factor of which some pieces are done: one of both.
struct OpenRenewal {
  std::optional<PanelInverse> inverse = std::nullopt;
  std::optional<SubspaceIteration> subspace = std::nullopt;
};

/// The refresh of the layers that are due in one step. Of a late step it stays open while later steps run.
struct OpenRefresh {
  int64_t step = 0;                   ///< the step whose statistics it takes
  size_t set = 0;                     ///< number of the layers' set in the cycle
  bool is_late = false;               ///< its renewals write the layers' next inverses, not those in use
  uint64_t seed = 0;                  ///< seed of the lattices
  std::vector<int64_t> samples = {};  ///< by micro-batch, of those that were watched
  double loss_scale = 1;
  StepDamping damping = {};  ///< damping of its renewals; of a late step as it was before the step
  std::vector<RefreshWork> work = {};
  std::vector<bool> done = {};                   ///< by piece of work
  std::vector<double> seconds = {};              ///< by piece of work
  std::map<int64_t, OpenRenewal> renewals = {};  ///< by group of factors
  bool was_resumed = false;                      ///< its work was done before a checkpoint: seconds are not known

  int64_t micro_batches() const { return std::ssize(samples); }
  int64_t all_samples() const { return std::accumulate(samples.begin(), samples.end(), int64_t{0}); }

  /// Returns true when more than statistics of its pieces are done.
  bool is_averaged() const {
    for (size_t k = 0; k < work.size(); ++k)
      if (done[k] && work[k].what != RefreshWork::What::statistics) return true;
    return false;
  }

  /// Sets the pieces, none of which is done.
  void prepare(std::vector<RefreshWork> pieces) {
    work = std::move(pieces);
    done.assign(work.size(), false);
    seconds.assign(work.size(), 0);
  }
};

}  // namespace spillway::kfac
