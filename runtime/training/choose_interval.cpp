#include "runtime/training/choose_interval.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/interrupted.h"
#include "runtime/interruption/failure.h"
#include "runtime/training/training_run.h"

namespace spillway::runtime {
namespace {

constexpr double kMaxExcess = 0.01;
constexpr size_t kMaxTrials = 4;
/// Each step of a cycle is a kind of step of its own, with its own plan of paging.
constexpr int64_t kMaxInterval = 16;
constexpr int64_t kTriedCycles = 3;

bool has_time(const TriedInterval& tried) {
  return tried.excess <= kMaxExcess;
}

TriedInterval try_interval(const RunContext& context, int64_t budget_bytes, double grad_worker_frac,
                           TrainRequests* requests) {
  const auto interval = static_cast<int64_t>(context.options.kfac.preconditioner.at(0).inverse_interval);
  TrainingRun run(context, budget_bytes, grad_worker_frac, nullptr, requests);
  const bool left = heard_by_all(context.comm, [&] {
    for (int64_t step = 0; step < kTriedCycles * interval; ++step) {
      const RunStep outcome = run.step();
      if (outcome.requested.checkpoint) requests->checkpoint = true;  // for the run that has something to save
      if (outcome.left || outcome.requested.stop) return true;
    }
    return false;
  });
  if (left) throw Interrupted("[train] interrupted while K-FAC's interval was chosen: there are no results yet");
  const pipe::Filled& filled = run.in_bubbles()->filled();
  TORCH_CHECK(filled.steps() > 0, "[train] the waits of a pipeline have no plan after ", kTriedCycles, " cycles");
  TriedInterval tried{.interval = interval,
                      .step_seconds = filled.seconds / static_cast<double>(interval),
                      .excess = filled.exceeded_seconds() / filled.unfilled_seconds};
  for (size_t rank = 0; rank < filled.filled.size(); ++rank) {
    const double bubbles = filled.unfilled_seconds - filled.busy[rank];
    tried.load = std::max(tried.load, filled.filled[rank] / std::max(bubbles, 1e-9));
  }
  return tried;
}

std::string describe(const TriedInterval& tried) {
  return str(tried.interval, " steps: ", std::llround(1000 * tried.step_seconds), " ms a step, ",
             has_time(tried) ? str("refreshes fill ", std::llround(100 * tried.load), " % of the waits")
                             : str(std::llround(100 * tried.excess), " % longer by refreshes"));
}

}  // namespace

int64_t next_interval(const std::vector<TriedInterval>& tried, int64_t most) {
  int64_t too_short = 1, has_room = most + 1;
  for (const TriedInterval& one : tried) {
    if (has_time(one)) has_room = std::min(has_room, one.interval);
    if (!has_time(one)) too_short = std::max(too_short, one.interval);
  }
  // The work of a cycle is the same for each interval, and bubbles grow with it.
  const double needed = static_cast<double>(tried.back().interval) * tried.back().load;
  const auto guess = static_cast<int64_t>(std::min(std::ceil(needed), static_cast<double>(most)));
  if (guess >= has_room) return 0;
  const int64_t next = std::max(guess, too_short + 1);
  return next < has_room && next <= most ? next : 0;
}

const TriedInterval& best_interval(const std::vector<TriedInterval>& tried) {
  return *std::min_element(tried.begin(), tried.end(), [](const TriedInterval& a, const TriedInterval& b) {
    if (has_time(a) != has_time(b)) return has_time(a);
    return has_time(a) ? a.interval < b.interval : a.step_seconds < b.step_seconds;
  });
}

std::string choose_interval(RunContext& context, int64_t budget_bytes, double grad_worker_frac,
                            TrainRequests* requests) {
  const int64_t delay = context.options.kfac.preconditioner.curvature_delay;
  const auto set = [&](int64_t interval) { set_refresh(context, interval, std::min(delay, interval - 1)); };
  std::vector<TriedInterval> tried;
  do {
    tried.push_back(try_interval(context, budget_bytes, grad_worker_frac, requests));
    const int64_t next = tried.size() < kMaxTrials ? next_interval(tried, kMaxInterval) : 0;
    if (next == 0) break;
    set(next);
  } while (true);
  const TriedInterval& best = best_interval(tried);
  set(best.interval);
  std::string text = str("K-FAC's layers are renewed every ", best.interval, " steps (--factor-interval ",
                         best.interval, " --inverse-interval ", best.interval, " --staleness ",
                         context.options.kfac.preconditioner.curvature_delay, ")");
  for (size_t i = 0; i < tried.size(); ++i) text += str(i == 0 ? ": " : "; ", describe(tried[i]));
  return text;
}

}  // namespace spillway::runtime
