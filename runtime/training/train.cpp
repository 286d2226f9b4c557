#include "runtime/training/train.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/device/device.h"
#include "core/error.h"
#include "core/host/host_topology.h"
#include "ddl/allreduce/explain.h"
#include "ddl/comm/busy.h"
#include "kfac/comm/option_agreement.h"
#include "runtime/data/host_dataset.h"
#include "runtime/io/weights_hash.h"
#include "runtime/models/model_info.h"
#include "runtime/training/failure.h"
#include "runtime/training/feasible_workers.h"
#include "runtime/training/replicas.h"
#include "runtime/training/used_cases.h"
#include "swap/schedule/schedule.h"
#include "swap/tiers/page_file.h"

namespace spillway {
namespace {

int64_t rss_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

/// Synthetic images show few of a model's classes, so that a short training meets each of them often.
constexpr int64_t kLargestImageClasses = 10;

DatasetOptions dataset_options(const TrainOptions& options) {
  DatasetOptions data;
  data.shape = options.shape;
  data.seed = options.seed;
  data.cases = options.cases;
  const bool images = model_info(options.model).input == InputKind::images;
  if (options.classes > 0) data.classes = images ? std::min(options.classes, kLargestImageClasses) : options.classes;
  return data;
}

/// Returns this rank's requests, and takes back the one for a checkpoint.
StepRequests take(TrainRequests* requests) {
  if (!requests) return {};
  return {.stop = requests->stop, .checkpoint = requests->checkpoint.exchange(false)};
}

/// Returns the step that the run ends after, counted from the very first.
int64_t last_step(const RunContext& context) {
  const TrainOptions& options = context.options;
  const RunPosition& start = context.start;
  // Epochs count cases. Those that are drawn already may have taken more or fewer steps, on another number of ranks.
  const int64_t steps = options.epochs > 0 ? options.epochs * steps_per_epoch(context) -
                                                 steps_for(context, start.cases_drawn) + start.step
                                           : options.steps;
  if (options.resume && start.step >= steps)
    throw BadRequest(str("[train] the checkpoint in '", options.checkpoint, "' is of step ", start.step,
                         ", and the run is to end after ", steps, ": nothing is left; ask for more steps"));
  return steps;
}

/// Of the first `count` steps, without the first two where more are left.
double median_of_steps(const TrainResult& result, size_t count) {
  std::vector<double> sorted(result.step_seconds.begin() + (count > 2 ? 2 : 0),
                             result.step_seconds.begin() + static_cast<std::ptrdiff_t>(count));
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

KfacSummary summarise(const kfac::Kfac& kfac, int64_t world, double fraction, const std::string& reason) {
  KfacSummary summary;
  summary.strategy = kfac::name(kfac.options().strategy);
  const int64_t workers = kfac::gradient_workers(kfac.options().strategy, fraction, world);
  summary.grad_worker_frac = static_cast<double>(workers) / static_cast<double>(world);
  summary.reason = reason;
  summary.layers = static_cast<int64_t>(kfac.layers().size());
  for (const auto& [shape, weight, bias] : kfac.layers()) {
    summary.separable_layers += shape.separable;
    summary.block_layers += shape.input_blocks > 1 || shape.output_blocks > 1;
  }
  summary.storage = kfac::name(kfac.options().storage);
  summary.left_alone = static_cast<int64_t>(kfac.left_alone().size());
  summary.state_bytes = kfac.memory_usage().held();
  summary.counters = kfac.counters();
  summary.seconds = kfac.seconds();
  return summary;
}

AllreduceSummary summarise_allreduce(const TrainingRun& run, ddl::CommunicatorHandle& comm, size_t steps) {
  AllreduceSummary summary;
  const int64_t bytes = run.gradient_bytes();
  const auto* overlapped = run.gradient_allreduce();
  const double count = static_cast<double>(std::max<size_t>(1, steps));
  summary.levels = comm.communicator->levels().shape();
  summary.bytes_per_step = bytes;
  summary.seconds_per_step = run.gradient_seconds() / count;
  summary.exposed_seconds_per_step = run.exposed_gradient_seconds() / count;
  if (overlapped) {
    summary.buckets = overlapped->buckets();
    summary.bucket_bytes = overlapped->bucket_bytes();
  }
  if (comm.cards.by_network()) {
    summary.algorithm = comm.cards.decision();
    summary.explanation = str("allreduce on cards by ", comm.cards.decision(), "\n");
    return summary;
  }
  const ddl::Choice choice = comm.allreduce.choice(overlapped ? overlapped->bucket_bytes() : bytes);
  const auto totals = overlapped ? overlapped->allreduces() : comm.allreduce.for_bytes(bytes).totals();
  const int64_t mean_bytes = totals.calls > 0 ? totals.bytes / totals.calls : bytes;
  constexpr auto kElement = ddl::Element::float32;
  summary.algorithm = choice.plan.name();
  summary.explanation =
      describe(explain(choice, mean_bytes / element_bytes(kElement), kElement, comm.allreduce.costs(), totals));
  if (const auto& costs = comm.allreduce.costs())
    summary.bound_seconds = bound_seconds(choice.plan.levels(), bytes, *costs);
  return summary;
}

/// Which modules stay first-order, by the reason why; three names of each.
std::string describe(const std::vector<kfac::LeftAlone>& modules) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& [name, reason] : modules) by_reason[reason].push_back(name);
  std::string text;
  for (const auto& [reason, names] : by_reason) {
    text += str(text.empty() ? "" : "; ", names.size(), " × ", reason, " (");
    for (size_t i = 0; i < names.size() && i < 3; ++i) text += str(i ? ", " : "", names[i]);
    text += names.size() > 3 ? ", …)" : ")";
  }
  return text;
}

std::optional<Prediction> predict(const TrainResult& result, const Session& session) {
  std::map<std::string_view, int64_t> counts;
  Prediction prediction;
  for (const std::string& kind : result.step_kinds)
    if (int64_t count = ++counts[kind]; count >= counts[prediction.kind]) prediction.kind = kind;
  const Schedule* schedule = session.schedule(prediction.kind);
  if (!schedule || schedule->predicted_seconds <= 0) return std::nullopt;  // none fits the budget: all on demand
  prediction.step_seconds = schedule->predicted_seconds;
  prediction.bound_seconds = schedule->bound_seconds;
  for (const StepTrace* trace : session.traces())
    if (const Schedule* of_kind = session.schedule(trace->kind))
      prediction.peak_bytes = std::max(prediction.peak_bytes, of_kind->predicted_peak_bytes);
  return prediction;
}

void finish(TrainResult& result, TrainingRun& run, const RunContext& context) {
  Session& session = run.session();
  const SessionStats stats = session.stats();
  result.peak_bytes = max_over_ranks(context.comm, stats.peak_bytes);
  result.peak_by_category = stats.peak_by_category;
  result.host_peak_bytes = max_over_ranks(context.comm, stats.host_peak_bytes);
  result.disk_peak_bytes = max_over_ranks(context.comm, stats.disk_peak_bytes);
  result.bytes_to_disk = stats.bytes_to_disk;
  result.bytes_from_disk = stats.bytes_from_disk;
  result.exposed_copy_seconds = stats.pager.exposed_seconds;
  result.bytes_out = stats.pager.bytes_out;
  result.bytes_in = stats.pager.bytes_in;
  result.replayed_operators = stats.pager.replays;
  result.predicted = predict(result, session);
  if (result.predicted)
    result.paging = summarise_paging(*session.trace(result.predicted->kind), *session.schedule(result.predicted->kind));
  if (result.predicted) result.predicted->peak_bytes = max_over_ranks(context.comm, result.predicted->peak_bytes);
  result.floor_bytes = max_over_ranks(context.comm, session.neediest().bytes());
  if (result.observed) result.floor_bytes = std::max(result.floor_bytes, result.observed->floor_bytes);
  result.rss_peak_bytes = max_over_ranks(context.comm, rss_peak_bytes());
  result.parameters = run.parameters();
  result.threads = max_over_ranks(context.comm, at::get_num_threads());
  if (context.comm) result.allreduce = summarise_allreduce(run, *context.comm, result.losses.size());
}

}  // namespace

double TrainResult::median_step_seconds() const {
  return median_of_steps(*this, step_seconds.size());
}

double step_time_ratio(const TrainResult& run, const TrainResult& base) {
  const size_t common = std::min(run.step_seconds.size(), base.step_seconds.size());
  const double divisor = median_of_steps(base, common);
  return divisor > 0 ? median_of_steps(run, common) / divisor : 0;
}

// Once, and before any Session: what is planned with is what runs place by, and no budget pays for the measurement.
void measure_placement(RunContext& context) {
  TrainOptions& options = context.options;
  if (!options.use_kfac || options.kfac.placement != kfac::Placement::measured) return;
  const auto task = make_task(options.model, task_options(options, *context.data));
  const auto layers = kfac::find_layers(task->module(), options.kfac).layers;
  options.kfac = kfac::with_agreed_seconds(options.kfac, layers, kfac::Exchange(context.comm));
}

RunContext make_context(const TrainOptions& asked, ddl::Comm comm) {
  asked.validate();
  RunContext context{.options = with_model_defaults(asked), .data = nullptr, .split = {}, .comm = std::move(comm)};
  const TrainOptions& options = context.options;
  // Files are read for as long as they take; the others are not to give this rank up.
  const ddl::Busy busy(context.comm ? context.comm->communicator.get() : nullptr);
  auto dataset = open_dataset(options.model, options.data, dataset_options(options));
  context.split = split(dataset->size());
  const int64_t together = options.batch * context.world();
  if (together > static_cast<int64_t>(context.split.train.size()))
    throw BadRequest(str("[train] ", context.world(), " ranks of batch ", options.batch, " take ", together,
                         " cases at once, but there are ", context.split.train.size(), " to train on (",
                         context.split.validation.size(),
                         " are held out); use fewer ranks, a smaller batch or more cases"));
  const int64_t ranks = context.comm ? context.comm->communicator->local_size() : 1;
  if (options.resume) context.start = checkpoint_position(options.checkpoint, options);
  const int64_t steps = last_step(context) - context.start.step;
  const auto used =
      used_cases(options, context.split, context.start.cases_drawn, steps, context.rank(), context.world());
  context.data = in_host_memory(std::move(dataset), used, discover_host().memory_bytes / 4 / ranks);
  measure_placement(context);
  return context;
}

Observation observe(const RunContext& context) {
  RunContext least = context;
  if (context.options.kfac.strategy == kfac::Strategy::automatic) least.options.kfac.strategy = kObservedStrategy;
  const bool choose = context.options.choose_grad_worker_frac;
  TrainingRun run(least, kUnlimitedBytes, choose ? 1.0 / context.world() : context.options.kfac.grad_worker_frac);
  Observation observed;
  heard_by_all(context.comm, [&] {
    StepOutcome step = run.step();
    while (step.skipped) step = run.step();  // a loss scale that is still too large: the optimizer has not been seen
    observed.step_seconds = step.seconds;
    run.validate();
  });
  observed.peak_bytes = max_over_ranks(context.comm, run.session().stats().peak_bytes);
  const Need& need = run.session().neediest();
  observed.floor_bytes = max_over_ranks(context.comm, need.bytes());
  observed.floor_operator = need.name;
  observed.floor_operator_bytes = need.leased_bytes + need.own_bytes;
  observed.gradient_bytes = run.gradient_bytes();
  observed.gradient_seconds = run.gradient_seconds();
  return observed;
}

BudgetRequest in_bytes(const BudgetRequest& request, const Observation& observed) {
  if (request.kind != BudgetRequest::Kind::percent) return request;
  return {.kind = BudgetRequest::Kind::bytes,
          .bytes = static_cast<int64_t>(request.percent / 100 * static_cast<double>(observed.peak_bytes))};
}

int64_t resolve_budget(const BudgetRequest& request, const Observation& observed, bool may_be_exceeded) {
  if (request.kind == BudgetRequest::Kind::none) return kUnlimitedBytes;
  const int64_t budget = in_bytes(request, observed).bytes;
  if (budget < observed.floor_bytes && !may_be_exceeded)
    throw InfeasibleBudget(str("[train] a budget of ", format_bytes(budget), " (", budget, " bytes) cannot run ",
                               observed.floor_operator, ", which needs ", format_bytes(observed.floor_operator_bytes),
                               " at once; the smallest feasible budget is ", observed.floor_bytes, " bytes (",
                               format_bytes(observed.floor_bytes), ")"));
  return budget;
}

TrainResult train(const RunContext& given, TrainListener& listener, TrainRequests* requests) {
  RunContext context = given;
  const TrainOptions& options = given.options;
  const int64_t steps = last_step(context), first_step = context.start.step;
  TrainResult result;
  result.options = options;
  result.world_size = context.world();
  if (!options.disk.empty()) PageFile{options.disk};  // throws now rather than after the observed step
  const bool choose = options.use_kfac && options.choose_grad_worker_frac && context.world() > 1;
  if (options.budget.kind != BudgetRequest::Kind::none || choose) {
    result.observed = observe(context);
    result.budget_bytes = resolve_budget(options.budget, *result.observed, options.may_exceed_budget());
    context.options.host_budget = in_bytes(options.host_budget, *result.observed);
    listener.on_decision(str("one step without a budget peaks at ", format_bytes(result.observed->peak_bytes),
                             "; the floor is ", format_bytes(result.observed->floor_bytes), " (",
                             result.observed->floor_operator, "); the budget is ", format_bytes(result.budget_bytes)));
    if (result.budget_bytes < result.observed->floor_bytes)
      listener.on_decision(
          "the budget is below the floor: the unified engine runs such operators all the same, on what page faults "
          "bring, and counts what exceeds the budget");
  }
  GradWorkerChoice workers;
  if (options.use_kfac) {
    workers = choose_feasible_workers(context, result.observed, result.budget_bytes);
    context.options.kfac.strategy = workers.strategy;
    listener.on_decision(str("K-FAC ", kfac::name(workers.strategy), ", grad_worker_frac ", workers.grad_worker_frac,
                             ": ", workers.reason));
  }

  listener.on_start();
  if (!options.checkpoint.empty() && context.rank() == 0) prepare_checkpoint_folder(options.checkpoint);
  StepRecorder recorder(open_device(options.device).ledger());
  TrainingRun run(context, result.budget_bytes, workers.grad_worker_frac, &recorder);
  if (run.kfac())
    listener.on_decision(str("K-FAC preconditions ", run.kfac()->layers().size(), " layers and leaves ",
                             run.kfac()->left_alone().size(), " modules to the optimizer",
                             run.kfac()->left_alone().empty() ? "" : ": ", describe(run.kfac()->left_alone())));
  const auto heard = [&](auto body) { return heard_by_all(context.comm, body); };
  if (options.resume) {
    heard([&] { run.resume(); });
    result.resumed_from_step = first_step;
    listener.on_decision(str("goes on from step ", first_step, " of '", options.checkpoint, "'"));
  }
  const int64_t every = options.validate_every > 0 ? options.validate_every : (steps + 4) / 5;
  result.metric_name = run.task().metric_name();
  const Batch sample = context.data->at(0);
  if (sample.input.dim() == 5) result.shape = {sample.input.size(2), sample.input.size(3), sample.input.size(4)};
  if (sample.input.dim() == 4) result.image_edge = sample.input.size(2);
  if (model_info(options.model).input == InputKind::curves) result.image_edge = synthetic_size(options.data);
  if (model_info(options.model).input == InputKind::tokens) result.sequence_length = sample.input.size(1);

  const auto compare_replicas = [&](int64_t step) {
    result.weights_sha256 = weights_sha256(run.task().module());
    if (context.world() == 1) return;
    require_equal_weights(context.comm, result.weights_sha256, step);
    result.replicas_compared_after.push_back(step);
  };
  auto measure = [&](int64_t step) {
    result.metric.push_back({step, heard([&] { return run.validate(); })});
    listener.on_metric(result.metric.back());
  };
  measure(first_step);
  for (int64_t i = first_step; i < steps && !result.interrupted; ++i) {
    if (i == steps - 1) recorder.start(i - first_step);
    const StepOutcome outcome = heard([&] { return run.step(take(requests)); });
    if (i == steps - 1) result.recording = recorder.stop();
    result.losses.push_back(outcome.loss);
    result.learning_rates.push_back(outcome.lr);
    result.step_seconds.push_back(outcome.seconds);
    result.step_kinds.push_back(outcome.kind);
    result.interrupted = outcome.requested.stop;
    if (outcome.skipped)
      listener.on_decision(str("step ", i + 1, " is left out: gradients overflow float16; the loss scale is ",
                               run.loss_scaler()->scale(), " from here on"));
    listener.on_step(i + 1, steps, outcome, run.session().ledger().used_bytes());
    if ((i + 1) % every == 0 || i + 1 == steps) measure(i + 1);
    const bool last = i + 1 == steps || result.interrupted;
    const bool due = options.checkpoint_every > 0 && (i + 1) % options.checkpoint_every == 0;
    const bool asked = outcome.requested.checkpoint;
    const bool saves = !options.checkpoint.empty() && (last || due || asked);
    if (saves || last) compare_replicas(i + 1);  // before they take the place of the last checkpoint
    if (saves) heard([&] { run.save(); });
    if (asked)
      listener.on_decision(
          saves ? str("step ", i + 1, ": wrote the checkpoint that was asked for")
                : str("step ", i + 1, ": a checkpoint was asked for, but this run has no folder for it"));
  }
  if (const LossScaler* scaler = run.loss_scaler()) result.loss_scale = {scaler->scale(), scaler->skipped()};
  if (run.kfac()) result.kfac = summarise(*run.kfac(), context.world(), workers.grad_worker_frac, workers.reason);
  finish(result, run, context);
  return result;
}

}  // namespace spillway
