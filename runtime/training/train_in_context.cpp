#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "runtime/data/open_dataset.h"
#include "runtime/interruption/failure.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/models/model_info.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/choose_interval.h"
#include "runtime/training/feasible_workers.h"
#include "runtime/training/summarize.h"
#include "runtime/training/train.h"
#include "runtime/training/training_run.h"
#include "runtime/training/unlimited_profile.h"
#include "runtime/training/whole_state.h"
#include "swap/tiers/page_file.h"

namespace spillway::runtime {
namespace {

/// Lists the modules that stay first-order, by the reason why, with three names of each.
std::string describe(const std::vector<kfac::SkippedLayer>& modules) {
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

/// Tells the counted work of a plan of K-FAC, whether it is as asked for, and how often layers are renewed.
std::string describe_plan(const std::vector<kfac::LayerCurvature>& layers, double counted, double asked) {
  const auto [least, most] = std::minmax_element(layers.begin(), layers.end(),
                                                 [](const auto& a, const auto& b) { return a.interval < b.interval; });
  const auto percent = [](double share) { return str(static_cast<int64_t>(std::ceil(100 * share)), " %"); };
  return str("K-FAC's counted work is ", percent(counted), " of a first-order step's",
             counted <= asked ? "" : str(": no plan has ", percent(asked), ", so this one has the least work"),
             "; each layer is renewed every ", least->interval,
             least->interval == most->interval ? "" : str(" to ", most->interval), " steps");
}

/// A call of train(), phase by phase.
class Training {
 public:
  Training(const RunContext& given, TrainListener& listener, TrainRequests* requests)
      : options_(given.options),
        context_(given),
        listener_(listener),
        requests_(requests ? requests : &no_requests_),
        first_step_(given.start.step),
        last_step_(last_step(given)),
        saved_step_(given.start.step),
        recorder_(open_device(options_.memory.device).ledger()) {
    result_.options = options_;
    result_.world_size = context_.world();
    if (!options_.memory.disk.empty())
      swap::PageFile{options_.memory.disk};  // throws now rather than after the observed step
  }

  void choose_budget();
  void choose_workers();
  void choose_interval();
  void open();
  void run_steps();
  TrainResult finish();

 private:
  template <class Body>
  decltype(auto) heard(Body&& body) {
    return heard_by_all(context_.comm, std::forward<Body>(body));
  }
  void describe_case();
  void measure(int64_t step);
  void compare_weights(int64_t step);
  void start_recording(int64_t step);
  RunStep take_step(int64_t step);
  void save_if_due(int64_t step, const StepRequests& requested);
  bool is_last(int64_t step) const { return step == last_step_ || result_.interrupted; }

  const TrainOptions& options_;
  RunContext context_;
  TrainListener& listener_;
  TrainRequests no_requests_;
  TrainRequests* const requests_;
  const int64_t first_step_, last_step_;
  int said_plans_ = 0;
  int64_t saved_step_;          ///< the step after which the state was saved last, or at which there was nothing new
  std::exception_ptr failure_;  ///< the error for which the last step or validation was left
  GradWorkerChoice workers_;
  StepRecorder recorder_;
  std::unique_ptr<TrainingRun> run_;
  TrainResult result_;
};

/// Observes a step where the budget, or the fraction of gradient workers, depends on the needs of a step.
void Training::choose_budget() {
  const bool choose = options_.kfac.enabled && options_.kfac.choose_grad_worker_frac && context_.holders() > 1;
  if (options_.memory.budget.kind == BudgetRequest::Kind::none && !choose) return;
  result_.observed = profile_unlimited_step(context_, requests_);
  const UnlimitedProfile& observed = *result_.observed;
  result_.budget_bytes = resolve_budget_or_name_split(context_, observed);
  context_.options.memory.host_budget = in_bytes(options_.memory.host_budget, observed.tensor_bytes());
  const std::string libraries =
      observed.library_bytes == 0 ? "" : str(" (", format_bytes(observed.library_bytes), " of them libraries')");
  listener_.on_decision(str(observed.steps == 1 ? "one step without a budget peaks at "
                                                : str(observed.steps, " steps without a budget peak at "),
                            format_bytes(observed.peak_bytes), libraries, "; the floor is ",
                            format_bytes(observed.floor_bytes), " (", observed.floor_operator, "); the budget is ",
                            format_bytes(result_.budget_bytes)));
  if (result_.budget_bytes < observed.floor_bytes)
    listener_.on_decision(
        "the budget is below the floor: the unified engine runs such operators all the same, on what page faults "
        "bring, and counts what exceeds the budget");
}

void Training::choose_workers() {
  if (!options_.kfac.enabled) return;
  workers_ = choose_feasible_workers(context_, result_.observed, result_.budget_bytes, requests_);
  context_.options.kfac.preconditioner.strategy = workers_.strategy;
  if (workers_.gradient_buffer_bytes > 0) context_.options.gradients.buffer_bytes = workers_.gradient_buffer_bytes;
  listener_.on_decision(str("K-FAC ", kfac::name(workers_.strategy), ", grad_worker_frac ", workers_.grad_worker_frac,
                            ": ", workers_.reason));
}

/// Chooses K-FAC's interval where a pipeline's bubbles decide it, and no checkpoint has.
void Training::choose_interval() {
  if (!options_.pipeline.choose_interval || options_.checkpoint.resume) return;
  listener_.on_decision(runtime::choose_interval(context_, result_.budget_bytes, workers_.grad_worker_frac, requests_));
}

/// Makes the run, or resumes the run of the checkpoint.
void Training::open() {
  listener_.on_start();
  if (const std::string remark = context_.data->remark(); !remark.empty()) listener_.on_decision(remark);
  if (!options_.checkpoint.folder.empty() && context_.rank() == 0)
    prepare_checkpoint_folder(options_.checkpoint.folder);
  run_ =
      std::make_unique<TrainingRun>(context_, result_.budget_bytes, workers_.grad_worker_frac, &recorder_, requests_);
  if (context_.pipeline) listener_.on_decision(describe(context_.pipeline->plan));
  if (const kfac::Kfac* kfac = run_->kfac()) {
    const std::vector<kfac::SkippedLayer> others = left_alone(*kfac, context_);
    const size_t layers = context_.pipeline ? context_.preconditioned_layers.size() : kfac->layers().size();
    listener_.on_decision(str("K-FAC preconditions ", layers, " layers and leaves ", others.size(),
                              " modules to the optimizer", others.empty() ? "" : ": ", describe(others)));
  }
  if (context_.counted_kfac_share)
    listener_.on_decision(describe_plan(context_.options.kfac.preconditioner.layer_curvature,
                                        *context_.counted_kfac_share, *options_.kfac.time_share));
  if (options_.checkpoint.resume) {
    heard([&] { run_->resume(); });
    result_.resumed_from_step = first_step_;
    listener_.on_decision(str("goes on from step ", first_step_, " of '", options_.checkpoint.folder, "'"));
    if (!context_.keeps_refresh)
      listener_.on_decision(
          "the checkpoint's run renewed K-FAC's layers in other steps, or used their curvature later or earlier: what "
          "was renewed for later steps is used at once");
    if (const int64_t saved_by = context_.start.ranks; saved_by > 0 && saved_by != context_.copies())
      listener_.on_decision(str("the checkpoint is of ", saved_by, saved_by == 1 ? " rank" : " ranks",
                                ", and this run has ", context_.copies(),
                                ": it draws the next cases, but its bits are not those of a run on ", saved_by,
                                " throughout"));
  }
  describe_case();
}

void Training::describe_case() {
  result_.metric_name = run_->model().metric_name();
  const at::Tensor sample = context_.data->at(0).input;
  const InputKind kind = model_info(options_.model.name).input;
  if (sample.dim() == 5) result_.shape = {sample.size(2), sample.size(3), sample.size(4)};
  if (sample.dim() == 4) result_.image_edge = sample.size(2);
  if (kind == InputKind::curves) result_.image_edge = synthetic_size(options_.data.source);
  if (kind == InputKind::tokens) result_.sequence_length = sample.size(1);
}

void Training::measure(int64_t step) {
  const Validation validation = heard([&] { return run_->validate(); });
  if (validation.left) {
    result_.interrupted = true;
    failure_ = validation.failure;
    listener_.on_decision(str("the validation after step ", step, " is left in its midst"));
    return;
  }
  result_.metric.push_back({step, validation.metric});
  listener_.on_metric(result_.metric.back());
}

void Training::compare_weights(int64_t step) {
  if (const auto& compared = result_.replicas_compared_after; !compared.empty() && compared.back() == step) return;
  result_.weights_sha256 = run_->weights_sha256();
  const ddl::Comm& same_weights = context_.same_weights();
  if (!same_weights) return;
  const std::string own = context_.pipeline ? weights_sha256(run_->model().module()) : result_.weights_sha256;
  require_equal_weights(same_weights, own, step);
  result_.replicas_compared_after.push_back(step);
}

void Training::run_steps() {
  const int64_t every = options_.validate_every > 0 ? options_.validate_every : (last_step_ + 4) / 5;
  int64_t done = first_step_;
  measure(done);
  if (result_.interrupted) save_if_due(done, {});
  while (done < last_step_ && !result_.interrupted) {
    const RunStep outcome = take_step(done + 1);
    if (!outcome.left) ++done;
    if (!outcome.left && (done % every == 0 || done == last_step_)) measure(done);
    save_if_due(done, outcome.requested);
  }
  if (failure_) heard([&] { std::rethrow_exception(failure_); });
}

/// Starts the recorder. The ranks of a pipeline start together, because the report draws them on one axis.
void Training::start_recording(int64_t step) {
  if (context_.pipeline) heard([&] { ddl::barrier(*context_.pipeline->of_copy); });
  recorder_.start(step - 1 - first_step_);
}

/// Takes a step. The last of the requested steps is recorded.
RunStep Training::take_step(int64_t step) {
  if (step == last_step_) start_recording(step);
  RunStep outcome = heard([&] { return run_->step(); });
  if (outcome.left) {
    result_.interrupted = true;
    failure_ = outcome.failure;
    listener_.on_decision(str("step ", step, " is left in its midst: the state is that after step ", step - 1));
    return outcome;
  }
  if (const KfacInBubbles* in_bubbles = run_->in_bubbles(); in_bubbles && in_bubbles->plans() > said_plans_) {
    said_plans_ = in_bubbles->plans();
    listener_.on_decision(describe(*in_bubbles));
  }
  if (step == last_step_) result_.recording = recorder_.stop();
  result_.losses.push_back(outcome.loss);
  result_.learning_rates.push_back(outcome.lr);
  result_.step_seconds.push_back(outcome.seconds);
  result_.step_kinds.push_back(outcome.kind);
  result_.interrupted = outcome.requested.stop;
  if (outcome.skipped)
    listener_.on_decision(str("step ", step, " is left out: gradients overflow float16; the loss scale is ",
                              run_->loss_scaler()->scale(), " from here on"));
  listener_.on_step(step, last_step_, outcome, run_->session().ledger().used_bytes());
  return outcome;
}

/// Saves a checkpoint when one is due. Weights are compared before they replace the last checkpoint.
void Training::save_if_due(int64_t step, const StepRequests& requested) {
  const bool due = options_.checkpoint.every > 0 && step % options_.checkpoint.every == 0;
  const bool has_folder = !options_.checkpoint.folder.empty();
  const bool saves = has_folder && (is_last(step) || due || requested.checkpoint) && step > saved_step_;
  if (saves || is_last(step)) compare_weights(step);
  if (saves) heard([&] { run_->save(); });
  if (saves) saved_step_ = step;
  if (requested.checkpoint)
    listener_.on_decision(has_folder
                              ? str("step ", step, ": wrote the checkpoint that was asked for")
                              : str("step ", step, ": a checkpoint was asked for, but this run has no folder for it"));
}

TrainResult Training::finish() {
  if (const LossScaler* scaler = run_->loss_scaler()) result_.loss_scale = {scaler->scale(), scaler->skipped()};
  if (run_->kfac()) result_.kfac = summarize(*run_->kfac(), context_, workers_.grad_worker_frac, workers_.reason);
  runtime::finish(result_, *run_, context_);
  return std::move(result_);
}

}  // namespace

TrainResult train_in_context(const RunContext& context, TrainListener& listener, TrainRequests* requests) {
  return heard_by_all(context.comm, [&] {
    Training training(context, listener, requests);
    training.choose_budget();
    training.choose_workers();
    training.choose_interval();
    training.open();
    training.run_steps();
    return training.finish();
  });
}

}  // namespace spillway::runtime

namespace spillway {

TrainResult train(const TrainOptions& options, ddl::Comm comm, TrainListener& listener, TrainRequests* requests) {
  return runtime::train_in_context(runtime::make_context(options, std::move(comm)), listener, requests);
}

}  // namespace spillway
