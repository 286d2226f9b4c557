#include "runtime/grad_worker_choice.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway {
namespace {

struct Prediction {
  double frac;
  int64_t held_bytes;
  int64_t peak_bytes;
  int64_t paged_bytes;      // above the budget
  int64_t broadcast_bytes;  // into a rank, per step
  double seconds;
};

Prediction predict(const GradWorkerInputs& in, int64_t workers, int64_t least_held) {
  Prediction p{};
  p.frac = static_cast<double>(workers) / static_cast<double>(in.world);
  const auto assignments = kfac::assign(in.layers, in.world, kfac::Strategy::hybrid, p.frac);
  for (const kfac::FactorBytes& bytes : kfac::bytes_per_rank(in.layers, assignments))
    p.held_bytes = std::max(p.held_bytes, bytes.held());
  const auto interval = static_cast<int64_t>(in.options.at(0).inverse_interval);
  for (const kfac::FactorTraffic& t : kfac::traffic_per_rank(in.layers, assignments))
    p.broadcast_bytes = std::max(p.broadcast_bytes, t.gradients + t.eigenbases / interval);
  p.peak_bytes = in.first_step_peak_bytes + (least_held ? p.held_bytes - least_held : 0);
  p.paged_bytes = std::max<int64_t>(0, p.peak_bytes - in.budget_bytes);
  const double copies = static_cast<double>(p.paged_bytes) / in.copy_bytes_per_second;
  p.seconds =
      std::max(in.step_seconds, copies) + static_cast<double>(p.broadcast_bytes) / in.broadcast_bytes_per_second;
  return p;
}

std::string describe(const Prediction& p) {
  return str("f=", p.frac, ": peak ", format_bytes(p.peak_bytes), " with ", format_bytes(p.held_bytes),
             " of K-FAC state, ", format_bytes(p.paged_bytes), " paged and ", format_bytes(p.broadcast_bytes),
             " broadcast per step");
}

}  // namespace

GradWorkerChoice choose_grad_worker_frac(const GradWorkerInputs& in) {
  if (in.world == 1) return {1, "one rank is every layer's gradient worker"};
  const Prediction least = predict(in, 1, 0);
  std::vector<Prediction> all;
  for (int64_t workers = in.world; workers >= 1; --workers) all.push_back(predict(in, workers, least.held_bytes));
  // Ordered from the largest fraction down, and only a strictly faster one replaces it.
  const Prediction* best = &all.front();
  for (const Prediction& p : all)
    if (p.seconds < best->seconds - 1e-9) best = &p;

  std::string reason = in.budget_bytes == kUnlimitedBytes ? "no budget" : str("budget ", format_bytes(in.budget_bytes));
  reason += "; " + describe(*best) + ", ";
  if (best == &all.front()) {
    reason += best->paged_bytes == 0 ? "all of it fits, so no gradient is broadcast"
                                     : "the copies hide behind compute, so no gradient is broadcast";
    reason += "; the least would be " + describe(all.back());
  } else {
    reason += "copies of more eigenbases would outlast compute; the most would be " + describe(all.front());
  }
  return {best->frac, reason};
}

}  // namespace spillway
