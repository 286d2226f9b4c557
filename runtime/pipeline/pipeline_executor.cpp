#include "runtime/pipeline/pipeline_executor.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "runtime/passes/autocast.h"
#include "runtime/pipeline/stage.h"
#include "runtime/pipeline/stage_channels.h"

namespace spillway::runtime {
namespace {

/// Returns a module with some of another one's submodules and parameters, under their names.
std::shared_ptr<torch::nn::Module> part_of(torch::nn::Module& whole, const std::vector<std::string>& names) {
  auto part = std::make_shared<torch::nn::Module>();
  const auto modules = whole.named_modules("", /*include_self=*/false);
  const auto parameters = whole.named_parameters();
  std::set<std::string> taken;
  for (const std::string& name : names) {
    if (!taken.insert(name).second) continue;
    std::shared_ptr<torch::nn::Module> parent = part;
    size_t begin = 0;
    for (size_t dot; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
      const std::string child = name.substr(begin, dot - begin);
      const auto known = parent->named_children();
      const auto* found = known.find(child);
      parent = found ? *found : parent->register_module(child, std::make_shared<torch::nn::Module>());
    }
    const std::string own = name.substr(begin);
    if (const auto* module = modules.find(name))
      parent->register_module(own, *module);
    else if (const at::Tensor* parameter = parameters.find(name))
      parent->register_parameter(own, *parameter);
    else
      TORCH_CHECK(false, "[pipeline] the model has no submodule or parameter '", name, "'");
  }
  return part;
}

/// The values of a module's buffers, which come back when it goes.
class SavedBuffers {
 public:
  explicit SavedBuffers(const torch::nn::Module& module) {
    for (const at::Tensor& buffer : module.buffers()) saved_.emplace_back(buffer, buffer.clone());
  }
  ~SavedBuffers() {
    // Graphs of micro-batches in flight hold running statistics, and read them in no training.
    const at::AutoDispatchBelowADInplaceOrView no_version;
    for (auto& [buffer, value] : saved_) buffer.copy_(value);
  }
  SavedBuffers(const SavedBuffers&) = delete;
  SavedBuffers& operator=(const SavedBuffers&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

class Executor final : public PipelineExecutor {
 public:
  Executor(std::shared_ptr<const Pipeline> pipeline, std::unique_ptr<Task> task,
           const PipelineExecutorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  std::string_view metric_name() const override { return objective_->metric_name(); }
  at::Tensor learn(const StepWork& work) override;
  std::optional<double> loss(const StepWork& work) override;
  std::optional<double> metric(const Batch& batch, Amp amp) override;

  void follow(const std::vector<pipe::FilledItem>* items, std::function<void(const pipe::FilledItem&)> run) override {
    items_ = items;
    run_extra_ = std::move(run);
  }
  const std::vector<pipe::FilledItem>& spans() const override { return times_.spans(); }
  const PipelineTotals& totals() const override { return times_.totals(); }
  const std::vector<ChannelMessages>& channel_messages() const override { return channels_.totals(); }
  std::vector<pipe::StageSeconds> take_stage_seconds() override {
    return times_.take_stage_seconds(plan().program.splits_backward);
  }
  int64_t number_of(const at::Tensor& parameter) const override { return numbers_.at(parameter.unsafeGetTensorImpl()); }
  void sum_shared_gradients() override;

 private:
  /// A stage of this rank.
  struct Own {
    int number = 0;
    int direction = 0;
    Stage stage;
    bool is_first = false, is_last = false;  ///< true for the model's first and last stage
  };

  const PipelinePlan& plan() const { return pipeline_->plan; }
  Own& own(int stage);
  /// Returns the program of this rank, without extras.
  std::vector<pipe::FilledItem> own_program() const;
  Stage::BeforePart seeding(int64_t step, int64_t micro_batch) const;
  Batch batch_of(const Own& at, const StepWork& work, int64_t micro_batch) const;
  bool recomputes(const Own& at, int micro_batch) const;
  at::Tensor loss_of(const at::Tensor& output, const Batch& batch, const Own& at) const;
  void forward_again(Own& at, const StepWork& work, int64_t micro_batch);
  void run_extra(const pipe::FilledItem& extra);
  void forward(const pipe::Item& item, const StepWork& work);
  void backward(const pipe::Item& item, const StepWork& work);
  void backward_weights(const pipe::Item& item);
  void run_item(const pipe::Item& item, const StepWork& work);
  /// Runs a micro-batch through all stages without gradients. Returns the model's output on the last stage's rank.
  at::Tensor evaluate(const Batch& batch, int64_t micro_batch, const Stage::BeforePart& before_part);

  const std::shared_ptr<const Pipeline> pipeline_;
  const PipelineExecutorOptions options_;
  const std::shared_ptr<const Objective> objective_;
  const std::shared_ptr<torch::nn::Module> module_;
  std::map<const c10::TensorImpl*, int64_t> numbers_;  ///< numbers among the whole model's parameters
  std::vector<Own> stages_;
  StageChannels channels_;
  PipelineTimes times_;
  std::vector<at::Tensor> losses_;
  const std::vector<pipe::FilledItem>* items_ = nullptr;
  std::function<void(const pipe::FilledItem&)> run_extra_;
};

PipelineExecutorOptions with_clock(PipelineExecutorOptions options) {
  if (!options.clock) options.clock = std::make_shared<SteadyPipelineClock>();
  return options;
}

Executor::Executor(std::shared_ptr<const Pipeline> pipeline, std::unique_ptr<Task> task,
                   const PipelineExecutorOptions& options)
    : pipeline_(std::move(pipeline)),
      options_(with_clock(options)),
      objective_(task->objective()),
      module_(module_at(plan(), pipeline_->place, *task)),
      channels_(pipeline_, options_.device, options_.clock),
      times_(plan().stages(), options_.clock) {
  const std::vector<Part> parts = task->parts();
  for (const auto [stage, direction] : plan().stages_at(pipeline_->place))
    stages_.push_back({.number = stage,
                       .direction = direction,
                       .stage = Stage(parts, plan().first_part(stage), plan().first_part(stage + 1)),
                       .is_first = stage == 0,
                       .is_last = stage + 1 == plan().stages()});
  for (const at::Tensor& parameter : task->module().parameters())
    numbers_.emplace(parameter.unsafeGetTensorImpl(), std::ssize(numbers_));
}

Executor::Own& Executor::own(int stage) {
  return *std::find_if(stages_.begin(), stages_.end(), [&](const Own& own) { return own.number == stage; });
}

std::vector<pipe::FilledItem> Executor::own_program() const {
  std::vector<pipe::FilledItem> items;
  for (const pipe::Item& item : plan().program.items[pipeline_->place]) items.push_back({.item = item});
  return items;
}

Stage::BeforePart Executor::seeding(int64_t step, int64_t micro_batch) const {
  uint64_t hash = hash_in(kHashSeed, options_.seed);
  for (int64_t number : {step, micro_batch, int64_t{pipeline_->copy}}) hash = hash_in(hash, number);
  return [hash, device = options_.device](int part) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(hash_in(hash, part));
  };
}

/// Returns a micro-batch where the stage reads cases or targets; else an empty one.
Batch Executor::batch_of(const Own& at, const StepWork& work, int64_t micro_batch) const {
  return at.is_first || at.is_last ? work.batch(micro_batch) : Batch();
}

/// True where a stage's backward of a micro-batch runs its forward again. Where backward follows at once, nothing would
/// be saved.
bool Executor::recomputes(const Own& at, int micro_batch) const {
  if (!plan().recompute) return false;
  const auto& program = plan().program.items[pipeline_->place];
  const auto item = std::find(program.begin(), program.end(), pipe::Item{pipe::Work::forward, at.number, micro_batch});
  return *std::next(item) != pipe::Item{plan().program.backward_work(), at.number, micro_batch};
}

/// Returns what backward of the last stage begins at.
at::Tensor Executor::loss_of(const at::Tensor& output, const Batch& batch, const Own& at) const {
  at::Tensor loss = objective_->loss(output, batch);
  // Ranks with the same weights average their gradients, so each takes the mean over its own micro-batches.
  const auto share = std::ssize(plan().micro_batches_of(at.direction));
  return share > 1 ? loss / share : loss;
}

void Executor::run_extra(const pipe::FilledItem& extra) {
  const double begin = times_.now();
  run_extra_(extra);
  times_.extra_done(extra, begin);
}

void Executor::forward(const pipe::Item& item, const StepWork& work) {
  Own& at = own(item.stage);
  const Batch batch = batch_of(at, work, item.micro_batch);
  const int64_t samples = plan().values.front().sizes.front();
  const Values inputs = channels_.take_inputs(item.stage, item.micro_batch, samples);
  const double begin = times_.now();
  const Autocast autocast(work.amp, options_.device.type());
  const bool again = recomputes(at, item.micro_batch);
  const at::AutoGradMode with_graph(!again);
  const Values outputs = at.stage.forward(item.micro_batch, inputs, batch, seeding(work.step, item.micro_batch));
  if (at.is_last) {
    const at::Tensor loss = loss_of(at.stage.output(item.micro_batch), batch, at);
    losses_.push_back(plan().directions() > 1 ? loss.detach() / plan().directions() : loss.detach());
    if (!again) at.stage.set_loss(item.micro_batch, work.loss_scale != 1 ? loss * work.loss_scale : loss);
  }
  if (again) at.stage.forget_outputs(item.micro_batch);
  times_.done(item, begin);
  channels_.send_outputs(item.stage, item.micro_batch, outputs);
}

void Executor::forward_again(Own& at, const StepWork& work, int64_t micro_batch) {
  const Batch batch = batch_of(at, work, micro_batch);
  const Autocast autocast(work.amp, options_.device.type());
  const SavedBuffers statistics(*module_);  // they have counted this micro-batch
  at.stage.forward_again(micro_batch, batch, seeding(work.step, micro_batch));
  if (!at.is_last) return;
  const at::Tensor loss = loss_of(at.stage.output(micro_batch), batch, at);
  at.stage.set_loss(micro_batch, work.loss_scale != 1 ? loss * work.loss_scale : loss);
}

void Executor::backward(const pipe::Item& item, const StepWork& work) {
  Own& at = own(item.stage);
  const int64_t samples = plan().values.front().sizes.front();
  const Values gradients = channels_.take_gradients(item.stage, item.micro_batch, samples);
  const double begin = times_.now();
  if (recomputes(at, item.micro_batch)) forward_again(at, work, item.micro_batch);
  if (work.before_backward)
    work.before_backward(at.stage.roots(item.micro_batch),
                         {.count = samples,
                          .again = &at != &stages_.front(),
                          .micro_batch = plan().number_in_direction(item.micro_batch)});
  const bool splits = plan().program.splits_backward;
  const Values of_inputs =
      splits ? at.stage.backward_inputs(item.micro_batch, gradients) : at.stage.backward(item.micro_batch, gradients);
  times_.done(item, begin);
  channels_.send_gradients(item.stage, item.micro_batch, of_inputs);
}

void Executor::backward_weights(const pipe::Item& item) {
  const double begin = times_.now();
  own(item.stage).stage.backward_weights(item.micro_batch);
  times_.done(item, begin);
}

void Executor::run_item(const pipe::Item& item, const StepWork& work) {
  switch (item.work) {
    case pipe::Work::forward:
      return forward(item, work);
    case pipe::Work::backward:
    case pipe::Work::input_gradient:
      return backward(item, work);
    case pipe::Work::weight_gradient:
      return backward_weights(item);
    case pipe::Work::update:
      return;
  }
}

at::Tensor Executor::learn(const StepWork& work) {
  channels_.begin_pass();
  losses_.clear();
  channels_.start();
  times_.start();
  const auto& program = plan().program.items[pipeline_->place];
  // Where gradients of weights come later, no backward completes all gradients.
  const auto last = std::find_if(program.rbegin(), program.rend(),
                                 [](const pipe::Item& item) { return item.work == pipe::Work::backward; });
  const bool announces = stages_.size() == 1 && last != program.rend() && work.before_last_backward;
  const std::vector<pipe::FilledItem> items = items_ ? *items_ : own_program();
  for (const pipe::FilledItem& filled : items) {
    if (filled.extra >= 0) {
      run_extra(filled);
      continue;
    }
    if (announces && filled.item == *last) work.before_last_backward();
    run_item(filled.item, work);
  }
  times_.stop(channels_.waited());
  channels_.stop();
  at::Tensor sum;
  for (const at::Tensor& loss : losses_) sum = sum.defined() ? sum + loss : loss;
  losses_.clear();
  return sum;
}

at::Tensor Executor::evaluate(const Batch& batch, int64_t micro_batch, const Stage::BeforePart& before_part) {
  at::Tensor output;
  for (const Own& at : stages_) {
    if (at.direction != 0) continue;
    const Values inputs = channels_.take_inputs(at.number, micro_batch, batch.input.size(0));
    const Values outputs = at.stage.evaluate(inputs, batch, before_part);
    channels_.send_outputs(at.number, micro_batch, outputs);
    if (at.is_last) output = outputs.at(at.stage.last_part());
  }
  return output;
}

std::optional<double> Executor::loss(const StepWork& work) {
  const at::NoGradGuard no_grad;
  channels_.begin_pass();
  double sum = 0;
  for (int64_t i = 0; i < work.micro_batches; ++i) {
    const Batch batch = work.batch(i);
    const Autocast autocast(work.amp, options_.device.type());
    const at::Tensor output = evaluate(batch, i, seeding(work.step, i));
    if (!output.defined()) continue;
    sum += objective_->loss(output, batch).item<double>() / static_cast<double>(work.micro_batches);
  }
  return pipeline_->place == pipeline_->place_of_last_stage() ? std::optional(sum) : std::nullopt;
}

std::optional<double> Executor::metric(const Batch& batch, Amp amp) {
  const Evaluation evaluation(*module_);
  channels_.begin_pass();
  const Autocast autocast(amp, options_.device.type());
  const at::Tensor output = evaluate(batch, 0, [](int) {});
  return output.defined() ? std::optional(objective_->metric(output, batch)) : std::nullopt;
}

void Executor::sum_shared_gradients() {
  const auto parameters = module_->named_parameters();
  for (size_t i = 0; i < plan().shared.size(); ++i) {
    if (!pipeline_->of_shared[i]) continue;
    const at::Tensor& parameter = parameters[plan().shared[i].name];
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    ddl::allreduce_({parameter.grad()}, pipeline_->of_shared[i], ddl::Reduction::sum);
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> module_at(const PipelinePlan& plan, int place, Task& task) {
  const std::vector<Part> parts = task.parts();
  std::vector<std::string> names;
  for (const auto [stage, direction] : plan.stages_at(place))
    for (int part = plan.first_part(stage); part < plan.first_part(stage + 1); ++part)
      names.insert(names.end(), parts[part].modules.begin(), parts[part].modules.end());
  return part_of(task.module(), names);
}

std::unique_ptr<PipelineExecutor> pipeline_executor(std::shared_ptr<const Pipeline> pipeline,
                                                    std::unique_ptr<Task> task,
                                                    const PipelineExecutorOptions& options) {
  return std::make_unique<Executor>(std::move(pipeline), std::move(task), options);
}

}  // namespace spillway::runtime
