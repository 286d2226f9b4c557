#include "kfac/statistics_watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "kfac/factors/own_operators.h"

namespace spillway::kfac {
namespace {

/// The ways in which a layer's statistics may be missing, as numbers that ranks compare: the largest of them counts.
namespace sight {
constexpr double kIdle = 0;    // no gradient: it did not run, or is frozen
constexpr double kApart = 1;   // a gradient that no watched graph explains
constexpr double kVeiled = 2;  // … and a graph with opaque nodes, which may be the explanation
constexpr double kSeen = 3;    // statistics
constexpr double kHidden = 4;  // a gradient through a node that shows nothing
}  // namespace sight

/// Returns how often backward will show each layer. A layer that was not met may be run again behind an opaque node,
/// nobody knows how often.
std::vector<int64_t> uses_of(const GraphLayers& met, size_t layers) {
  std::vector<int64_t> uses(layers, met.opaque.empty() ? 0 : std::numeric_limits<int64_t>::max());
  for (const auto& [layer, count] : met.uses) uses[layer] = count;
  return uses;
}

bool is_zero(const at::Tensor& gradient) {
  return !gradient.defined() || !gradient.any().item<bool>();
}

}  // namespace

StatisticsWatch::StatisticsWatch(const Setup& setup, const RefreshPlan& plan, std::shared_ptr<StagedFactors> staged,
                                 CurvatureRefresh& refresh, const Tally& tally, RerunFinder find_reruns)
    : setup_(setup),
      plan_(plan),
      staged_(std::move(staged)),
      refresh_(refresh),
      tally_(tally),
      find_reruns_(std::move(find_reruns)) {}

void StatisticsWatch::set_seed() {
  const auto updates = static_cast<uint64_t>(tally_.counters.factor_updates);
  staged_->seed = hash_in(hash_in(kHashSeed, setup_.options.seed), updates);
}

std::shared_ptr<const GraphWatch> StatisticsWatch::graph_watch(int64_t micro_batch) const {
  auto watch = std::make_shared<GraphWatch>();
  watch->staged = staged_;
  watch->find_reruns = find_reruns_;
  const bool holds = plan_.is_late(tally_.counters.steps) && staged_->holds;
  watch->sink = [staged = std::weak_ptr(staged_), holds, micro_batch](const Captured& captured) {
    if (auto alive = staged.lock()) holds ? alive->hold(captured, micro_batch) : alive->stage(captured);
  };
  for (size_t i : due_layers())
    if (setup_.assignments[i].stages_factors(setup_.rank()))
      watch->due[setup_.layers[i].weight.unsafeGetTensorImpl()] = i;
  return watch;
}

void StatisticsWatch::watch(at::TensorList roots, const StageSamples& samples) {
  const int64_t batch = samples.count, step = tally_.counters.steps;
  const int64_t least = setup_.exchange.world() == 1 ? 1 : 0;
  TORCH_CHECK(batch >= least, "[kfac.watch] batch = ", batch, " is outside ", least, " and more samples");
  if (!updates_factors()) return;
  TORCH_CHECK(!watched_ || !staged_->early, "[kfac.watch] step ", step,
              " was watched before; overlap_factors allows one watch a step");
  watched_ = true;
  set_seed();
  const auto watch = graph_watch(plan_.is_late(step) ? refresh_.open(batch, samples.micro_batch) : samples.micro_batch);
  GraphLayers met;
  if (batch > 0 && !watch->due.empty()) met = watch_graph(roots, watch);
  if (staged_->early) staged_->early->begin(uses_of(met, setup_.layers.size()), batch);
  if (!samples.again) watched_batch_ += batch;
}

// The samples count when backward reaches the graph: not where a checkpoint makes a pass that was watched once more,
// only for what the pass has saved.
void StatisticsWatch::watch_rerun(at::TensorList roots, int64_t batch) {
  if (!updates_factors() || batch < 1) return;
  if (staged_->early) {
    if (!watched_) watch(roots, {.count = batch, .micro_batch = -1});
    return;
  }
  set_seed();
  GraphWatch watch = *graph_watch(/*micro_batch=*/-1);
  watch.sink = [stage = watch.sink, staged = watch.staged, batch,
                counted = std::make_shared<bool>()](const Captured& captured) {
    if (const auto alive = staged.lock()) {
      const std::lock_guard lock(alive->mutex);
      if (!std::exchange(*counted, true)) alive->rerun_samples += batch;
    }
    stage(captured);
  };
  if (!watch.due.empty()) watch_graph(roots, std::make_shared<const GraphWatch>(std::move(watch)));
}

void StatisticsWatch::take_reruns() {
  const std::lock_guard lock(staged_->mutex);
  const int64_t samples = std::exchange(staged_->rerun_samples, 0);
  watched_ = watched_ || samples > 0;
  watched_batch_ += samples;
}

int64_t StatisticsWatch::samples() {
  if (!updates_factors()) return 0;
  take_reruns();
  TORCH_CHECK(watched_, "[kfac.step] step ", tally_.counters.steps,
              " updates the factors: call watch(loss, batch) before backward");
  check_positions();
  return watched_batch_;
}

// Refuses a number of samples that no layer has. Only backward tells how many positions there are.
void StatisticsWatch::check_positions() const {
  const auto wanted = setup_.options.factor_samples.positions();
  if (!wanted || tally_.counters.factor_updates > 0) return;
  int64_t most = 0;
  for (const auto& layer : staged_->layers) most = std::max(most, layer.positions());
  const auto of_ranks = setup_.exchange.gather({static_cast<double>(most)});
  most = static_cast<int64_t>(*std::max_element(of_ranks.begin(), of_ranks.end()));
  if (setup_.rows_of_stages) {  // another stage's layers may have more
    const auto own = at::full({1, 1}, most, at::TensorOptions(at::kLong));
    most = setup_.all_rows(own, {0}).max().item<int64_t>();
  }
  if (most > 0 && *wanted > most)
    throw BadRequest(str("[kfac.options] factor_samples = ", *wanted, " is outside 1 to ", most,
                         ", the most positions that a layer has"));
}

void StatisticsWatch::forget() {
  staged_->forget_graphs();
  watched_batch_ = 0;
  watched_ = false;
}

// --- what was not seen -----------------------------------------------------------------------------------------------

double StatisticsWatch::sight_of(size_t i) const {
  if (!setup_.assignments[i].stages_factors(setup_.rank())) return sight::kIdle;  // its owner tells
  if (staged_->layers[i].positions() > 0) return sight::kSeen;
  if (is_zero(setup_.layers[i].weight.grad())) return sight::kIdle;
  if (staged_->taken_by.contains(i)) return sight::kHidden;
  return staged_->opaque.empty() ? sight::kApart : sight::kVeiled;
}

std::string StatisticsWatch::blindness(size_t i) const {
  const auto taken = staged_->taken_by.find(i);
  const std::string by = taken == staged_->taken_by.end() ? staged_->opaque : taken->second;
  const bool is_compiled = by.starts_with("Compiled");
  return str("[kfac.step] layer '", setup_.shape(i).name,
             "' has a gradient, but nothing of its inputs was seen: ", by.empty() ? "another rank's function" : by,
             is_compiled ? " is a compiled graph, which shows none. Run steps that update factors eagerly: "
                           "torch.compiler.set_stance(\"force_eager\") where kfac.updates_factors is true"
                         : " hides them. Make the KFAC after the layer's weight has its last form (parametrizations, "
                           "compiling), call the layer as a module or its operator",
             ", or leave the layer out: skip=[\"^", setup_.shape(i).name, "$\"]");
}

std::vector<SkippedLayer> StatisticsWatch::unseen_layers() {
  const OwnOperators own;
  if (!updates_factors() || plan_.is_late(tally_.counters.steps)) return {};
  take_reruns();
  if (!watched_) return {};
  const bool is_first = was_seen_.empty();
  const auto& due = due_layers();
  std::vector<double> sights;
  for (size_t i : due) sights.push_back(sight_of(i));
  if (is_first) {
    was_seen_.resize(setup_.layers.size());
    const auto all = setup_.exchange.gather(sights);
    for (size_t k = 0; k < all.size(); ++k) sights[k % due.size()] = std::max(sights[k % due.size()], all[k]);
  }
  std::vector<SkippedLayer> unseen;
  for (size_t k = 0; k < due.size(); ++k) {
    const size_t i = due[k];
    // Other ranks may have seen what this one has not.
    const bool may_be_veiled = is_first || (setup_.exchange.world() == 1 && !was_seen_[i]);
    TORCH_CHECK(sights[k] != sight::kHidden && !(sights[k] == sight::kVeiled && may_be_veiled), blindness(i));
    if (sights[k] == sight::kSeen)
      was_seen_[i] = true;
    else if (is_first)
      unseen.push_back({setup_.shape(i).name,
                        sights[k] == sight::kIdle ? "it had no gradient" : "its gradient comes from no watched pass"});
  }
  return unseen;
}

}  // namespace spillway::kfac
