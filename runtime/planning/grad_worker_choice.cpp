#include "runtime/planning/grad_worker_choice.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"
#include "core/memory/device_memory.h"
#include "kfac/plan/factor_traffic.h"

namespace spillway::runtime {
namespace {

struct Prediction {
  kfac::StrategyChoice choice;
  int64_t held_bytes;
  int64_t peak_bytes;
  int64_t paged_bytes;     // part of the peak above the budget
  int64_t unpaged_bytes;   // small tensors of K-FAC's state; the maximum over ranks
  int64_t received_bytes;  // by a rank, per step
  double seconds;
};

// Returns the bytes charged for the tensors that `rank` holds and that are below a page.
int64_t unpaged_bytes(const GradWorkerInputs& in, const std::vector<kfac::Assignment>& assignments, int64_t rank) {
  constexpr int64_t kElement = 4;
  int64_t sum = 0;
  for (size_t l = 0; l < in.layers.size(); ++l) {
    const auto add = [&](const std::vector<kfac::HeldTensor>& tensors) {
      for (const auto& tensor : tensors)
        if (const int64_t bytes = kfac::bytes_of({tensor}, in.layers[l].storage, kElement); bytes < in.min_page_bytes)
          sum += DeviceMemory::charge_of(bytes);
    };
    if (assignments[l].holds_factors(rank)) add(kfac::factor_tensors(in.layers[l]));
    if (!assignments[l].is_worker(rank)) continue;
    add(kfac::inverse_tensors(in.layers[l]));
    add(kfac::scale_tensors(in.layers[l]));
  }
  return sum;
}

Prediction predict(const GradWorkerInputs& in, const kfac::StrategyChoice& choice, int64_t least_held) {
  Prediction p{};
  p.choice = choice;
  const auto options = kfac::with(in.options, choice);
  const auto assignments = kfac::assign(in.layers, in.world, options);
  for (const kfac::FactorBytes& bytes : kfac::bytes_per_rank(in.layers, assignments))
    p.held_bytes = std::max(p.held_bytes, bytes.held());
  for (int64_t rank = 0; rank < in.world; ++rank)
    p.unpaged_bytes = std::max(p.unpaged_bytes, unpaged_bytes(in, assignments, rank));
  const auto now = options.in_long_run();
  for (const kfac::FactorTraffic& t : kfac::traffic_per_rank(in.layers, assignments, options.factor_dtype))
    p.received_bytes =
        std::max(p.received_bytes, t.gradients + t.eigenbases / static_cast<int64_t>(now.inverse_interval) +
                                       t.factors / static_cast<int64_t>(now.factor_interval));
  p.peak_bytes = in.first_step_peak_bytes + (least_held ? p.held_bytes - least_held : 0);
  p.paged_bytes = std::max<int64_t>(0, p.peak_bytes - in.budget_bytes);
  const double copies = static_cast<double>(p.paged_bytes) / in.copy_bytes_per_second;
  p.seconds = std::max(in.step_seconds, copies) + static_cast<double>(p.received_bytes) / in.broadcast_bytes_per_second;
  return p;
}

std::string describe(const Prediction& p, bool named) {
  return str(named ? str(kfac::name(p.choice.strategy), " ") : "", "f=", p.choice.grad_worker_frac, ": peak ",
             format_bytes(p.peak_bytes), " with ", format_bytes(p.held_bytes), " of K-FAC state, ",
             format_bytes(p.paged_bytes), " paged and ", format_bytes(p.received_bytes), " received per step");
}

std::vector<kfac::StrategyChoice> choices(const GradWorkerInputs& in) {
  auto all = kfac::exact_choices(in.world);
  if (in.options.strategy == kfac::Strategy::automatic) return all;
  std::erase_if(all, [&](const kfac::StrategyChoice& c) { return c.strategy != in.options.strategy; });
  return all;
}

}  // namespace

GradWorkerChoice choose_grad_worker_frac(const GradWorkerInputs& in) {
  const bool named = in.options.strategy == kfac::Strategy::automatic;
  const auto observed = named ? kfac::Strategy::hybrid : in.options.strategy;
  if (in.world == 1) return {observed, 1, "one rank is every layer's gradient worker"};
  const Prediction least = predict(in, {observed, 1.0 / static_cast<double>(in.world)}, 0);
  std::vector<Prediction> all;
  // The rank that determines the floor is unknown here, so the rank with the fewest unpaged bytes is assumed.
  int64_t observed_unpaged = least.unpaged_bytes;
  const auto assigned = kfac::assign(in.layers, in.world, kfac::with(in.options, least.choice));
  for (int64_t rank = 0; rank < in.world; ++rank)
    observed_unpaged = std::min(observed_unpaged, unpaged_bytes(in, assigned, rank));
  for (const auto& choice : choices(in)) {
    const Prediction p = predict(in, choice, least.held_bytes);
    if (in.floor_bytes + p.unpaged_bytes - observed_unpaged <= in.budget_bytes) all.push_back(p);
  }
  if (all.empty()) all.push_back(predict(in, least.choice, least.held_bytes));  // the observed choice
  // Choices of a strategy are ordered from the largest fraction down, and only a strictly faster choice replaces an
  // earlier one.
  const Prediction* best = &all.front();
  for (const Prediction& p : all)
    if (p.seconds < best->seconds - 1e-9) best = &p;

  std::string reason = in.budget_bytes == kUnlimitedBytes ? "no budget" : str("budget ", format_bytes(in.budget_bytes));
  reason += "; " + describe(*best, named) + ", ";
  if (all.front().choice.grad_worker_frac < choices(in).front().grad_worker_frac && best == &all.front()) {
    reason += "small tensors of more workers, which are not paged, would leave too little room";
  } else if (best == &all.front()) {
    reason += best->paged_bytes == 0 ? "all of it fits, so no gradient is broadcast"
                                     : "the copies hide behind compute, so no gradient is broadcast";
    reason += "; the least would be " + describe(all.back(), named);
  } else {
    reason += "copies of more eigenbases would outlast compute; the most would be " + describe(all.front(), named);
  }
  return {best->choice.strategy, best->choice.grad_worker_frac, reason};
}

}  // namespace spillway::runtime
