#include "runtime/pipeline/pipelined_model.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/messages.h"
#include "pipe/channels.h"
#include "runtime/passes/autocast.h"
#include "runtime/pipeline/stage.h"

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

/// The ends of a line at one rank.
struct End {
  int channel = -1;         ///< number of the courier's channel; −1: both stages are on this rank
  int stage = 0;            ///< the stage at the other end
  std::vector<int> values;  ///< parts whose outputs, or their gradients, travel
};

class Model final : public PipelinedModel {
 public:
  Model(std::shared_ptr<const Pipeline> pipeline, std::unique_ptr<Task> task, const PipelinedOptions& options);

  torch::nn::Module& module() override { return *module_; }
  std::string_view metric_name() const override { return objective_->metric_name(); }
  at::Tensor learn(const StepWork& work) override;
  std::optional<double> loss(const StepWork& work) override;
  std::optional<double> metric(const Batch& batch, Amp amp) override;

  const std::vector<pipe::FilledItem>& spans() const override { return spans_; }
  const PipelineTotals& totals() const override { return totals_; }
  const std::vector<LineTotals>& line_totals() const override { return meter_.totals(); }
  std::vector<pipe::StageSeconds> take_stage_seconds() override;
  int64_t number_of(const at::Tensor& parameter) const override { return numbers_.at(parameter.unsafeGetTensorImpl()); }
  void sum_shared_gradients() override;

 private:
  /// A stage of this rank and its lines.
  struct Own {
    int number = 0;
    int direction = 0;
    Stage stage;
    std::vector<End> inputs = {}, outputs = {};  ///< activations
    std::vector<End> errors_in = {}, errors_out = {};
    bool is_first = false, is_last = false;  ///< true for the model's first and last stage
  };
  /// Values that one stage of this rank has left for another one.
  using LocalKey = std::tuple<int, int, bool, int64_t>;  // from, to, whether errors, micro-batch

  const PipelinePlan& plan() const { return pipeline_->plan; }
  Own& own(int stage);
  void make_lines();
  Values receive(const Own& to, const End& end, bool errors, int64_t micro_batch, int64_t samples);
  void send(const Own& from, const End& end, bool errors, int64_t micro_batch, const Values& values);
  Stage::BeforePart seeding(int64_t step, int64_t micro_batch) const;
  Values take_inputs(const Own& at, int64_t micro_batch, int64_t samples);
  void done(const pipe::Item& item, double begin);
  bool recomputes(const Own& at, int64_t micro_batch) const;
  at::Tensor loss_of(const at::Tensor& output, const Batch& batch, const Own& at) const;
  void forward_again(Own& at, const StepWork& work, int64_t micro_batch);
  void run_extra(const pipe::FilledItem& extra, const StepWork& work);
  void forward(Own& at, const StepWork& work, int64_t micro_batch);
  void backward(Own& at, const StepWork& work, int64_t micro_batch);
  void backward_weights(Own& at, int64_t micro_batch);
  void run_item(const pipe::Item& item, const StepWork& work);
  /// Runs a micro-batch through all stages without gradients. Returns the model's output on the last stage's rank.
  at::Tensor evaluate(const Batch& batch, int64_t micro_batch, const Stage::BeforePart& before_part);

  const std::shared_ptr<const Pipeline> pipeline_;
  const PipelinedOptions options_;
  const std::shared_ptr<PipelineClock> clock_;
  const std::shared_ptr<const Objective> objective_;
  std::shared_ptr<torch::nn::Module> module_;
  std::map<const c10::TensorImpl*, int64_t> numbers_;  ///< numbers among the whole model's parameters
  std::vector<Own> stages_;
  ddl::Messages messages_;
  std::map<LocalKey, Values> local_;
  bool is_learning_ = false;  ///< within learn(), the only one whose times count
  int64_t pass_ = 0;          ///< passes over micro-batches so far, the same on every rank: the stamp's step
  std::vector<at::Tensor> losses_;
  std::vector<pipe::FilledItem> spans_;
  PipelineTotals totals_;
  LineMeter meter_;
  std::vector<pipe::StageSeconds> stage_sums_;  ///< by stage, since they were taken
  std::vector<int64_t> stage_passes_;           ///< forwards of each stage since then
};

Model::Model(std::shared_ptr<const Pipeline> pipeline, std::unique_ptr<Task> task, const PipelinedOptions& options)
    : pipeline_(std::move(pipeline)),
      options_(options),
      clock_(options.clock ? options.clock : std::make_shared<SteadyPipelineClock>()),
      objective_(task->objective()) {
  const std::vector<Part> parts = task->parts();
  for (const auto [stage, direction] : plan().stages_at(pipeline_->place))
    stages_.push_back({.number = stage,
                       .direction = direction,
                       .stage = Stage(parts, plan().first_part(stage), plan().first_part(stage + 1)),
                       .is_first = stage == 0,
                       .is_last = stage + 1 == plan().stages()});
  stage_sums_.resize(plan().stages());
  stage_passes_.resize(plan().stages());
  module_ = module_at(plan(), pipeline_->place, *task);
  for (const at::Tensor& parameter : task->module().parameters())
    numbers_.emplace(parameter.unsafeGetTensorImpl(), std::ssize(numbers_));
  make_lines();
}

void Model::make_lines() {
  const auto& graph = plan().program.graph;
  std::vector<ddl::Channel> channels;
  const auto all = pipe::channels(plan().program);
  // Returns the courier's channel of a line, made when it is first asked for.
  const auto channel_of = [&](int from, int to, bool errors, int direction, int64_t bytes) {
    const auto line = std::find_if(all.begin(), all.end(), [&](const pipe::Channel& l) {
      return l.from_stage == from && l.to_stage == to && l.is_gradient == errors && l.copy == direction;
    });
    if (line == all.end()) return -1;
    const bool sends = line->from_rank == pipeline_->place;
    channels.push_back({.name = pipe::describe(*line),
                        .number = static_cast<int>(line - all.begin()),
                        .peer = sends ? line->to_rank : line->from_rank,
                        .sends = sends,
                        .bytes = bytes,
                        .slots = plan().slots});
    meter_.add(channels.back().number, *line);
    return static_cast<int>(channels.size()) - 1;
  };
  for (size_t i = 0; i < graph.edges.size(); ++i) {
    const auto [from, to] = graph.edges[i];
    const auto& values = plan().values_of_edge[i];
    int64_t bytes = 0;
    for (int value : values) bytes += plan().values[value].bytes();
    for (Own& at : stages_) {
      if (at.number == from) {
        at.outputs.push_back({channel_of(from, to, false, at.direction, bytes), to, values});
        at.errors_in.push_back({channel_of(to, from, true, at.direction, bytes), to, values});
      }
      if (at.number == to) {
        at.inputs.push_back({channel_of(from, to, false, at.direction, bytes), from, values});
        at.errors_out.push_back({channel_of(to, from, true, at.direction, bytes), from, values});
      }
    }
  }
  messages_ = ddl::make_messages(pipeline_->of_copy->duplicate(), std::move(channels));
}

Model::Own& Model::own(int stage) {
  return *std::find_if(stages_.begin(), stages_.end(), [&](const Own& own) { return own.number == stage; });
}

Values Model::receive(const Own& to, const End& end, bool errors, int64_t micro_batch, int64_t samples) {
  if (end.channel < 0) {
    auto left = local_.extract({end.stage, to.number, errors, micro_batch});
    return std::move(left.mapped());
  }
  const double start = clock_->now();
  Values values;
  std::vector<at::Tensor> tensors;
  for (int value : end.values) {
    tensors.push_back(plan().values[value].empty(samples, options_.device));
    values[value] = tensors.back();
  }
  clock_->received(ddl::receive_(tensors, messages_, end.channel, {pass_, micro_batch, 0}));
  if (is_learning_) totals_.wait += clock_->now() - start;
  return values;
}

void Model::send(const Own& from, const End& end, bool errors, int64_t micro_batch, const Values& values) {
  if (end.channel < 0) {
    Values& left = local_[{from.number, end.stage, errors, micro_batch}];
    for (int value : end.values) left[value] = values.at(value);
    return;
  }
  std::vector<at::Tensor> tensors;
  for (int value : end.values) tensors.push_back(values.at(value).contiguous(plan().values[value].format));
  ddl::send(tensors, messages_, end.channel, {pass_, micro_batch, clock_->now()});
}

Stage::BeforePart Model::seeding(int64_t step, int64_t micro_batch) const {
  uint64_t hash = hash_in(kHashSeed, options_.seed);
  for (int64_t number : {step, micro_batch, int64_t{pipeline_->copy}})
    hash = hash_in(hash, static_cast<uint64_t>(number));
  return [hash, device = options_.device](int part) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(hash_in(hash, static_cast<uint64_t>(part)));
  };
}

Values Model::take_inputs(const Own& at, int64_t micro_batch, int64_t samples) {
  Values inputs;
  for (const End& end : at.inputs) inputs.merge(receive(at, end, /*errors=*/false, micro_batch, samples));
  return inputs;
}

void Model::done(const pipe::Item& item, double begin) {
  clock_->done(item);
  const double end = clock_->now();
  spans_.push_back({.item = item, .begin = begin, .end = end});
  const bool is_forward = item.work == pipe::Work::forward;
  (is_forward ? totals_.forward : totals_.backward) += end - begin;
  pipe::StageSeconds& sums = stage_sums_[item.stage];
  if (is_forward) ++stage_passes_[item.stage];
  (is_forward                                 ? sums.forward
   : item.work == pipe::Work::weight_gradient ? sums.weight_gradient
                                              : sums.input_gradient) += end - begin;
}

/// True where a stage's backward of a micro-batch runs its forward again. Where backward follows at once, nothing would
/// be saved.
bool Model::recomputes(const Own& at, int64_t micro_batch) const {
  if (!plan().recompute) return false;
  const auto& program = plan().program.items[pipeline_->place];
  const auto item = std::find(program.begin(), program.end(),
                              pipe::Item{pipe::Work::forward, at.number, static_cast<int>(micro_batch)});
  return *std::next(item) != pipe::Item{plan().program.backward_work(), at.number, static_cast<int>(micro_batch)};
}

/// Returns what backward of the last stage begins at.
at::Tensor Model::loss_of(const at::Tensor& output, const Batch& batch, const Own& at) const {
  at::Tensor loss = objective_->loss(output, batch);
  // Ranks with the same weights average their gradients, so each takes the mean over its own micro-batches.
  const auto share = std::ssize(plan().micro_batches_of(at.direction));
  return share > 1 ? loss / share : loss;
}

void Model::run_extra(const pipe::FilledItem& extra, const StepWork& work) {
  const double begin = clock_->now();
  work.run_extra(extra);
  clock_->extra_done(extra);
  spans_.push_back(extra);
  spans_.back().begin = begin;
  spans_.back().end = clock_->now();
  totals_.extras += spans_.back().end - begin;
}

void Model::forward(Own& at, const StepWork& work, int64_t micro_batch) {
  const Batch batch = at.is_first || at.is_last ? work.batch(micro_batch) : Batch();
  const int64_t samples = plan().values.front().sizes.front();
  const Values inputs = take_inputs(at, micro_batch, samples);
  const double begin = clock_->now();
  const Autocast autocast(work.amp, options_.device.type());
  const bool again = recomputes(at, micro_batch);
  const at::AutoGradMode with_graph(!again);
  const Values outputs = at.stage.forward(micro_batch, inputs, batch, seeding(work.step, micro_batch));
  if (at.is_last) {
    const at::Tensor loss = loss_of(at.stage.output(micro_batch), batch, at);
    losses_.push_back(plan().directions() > 1 ? loss.detach() / plan().directions() : loss.detach());
    if (!again) at.stage.set_loss(micro_batch, work.loss_scale != 1 ? loss * work.loss_scale : loss);
  }
  if (again) at.stage.forget_outputs(micro_batch);
  done({pipe::Work::forward, at.number, static_cast<int>(micro_batch)}, begin);
  for (const End& end : at.outputs) send(at, end, /*errors=*/false, micro_batch, outputs);
}

void Model::forward_again(Own& at, const StepWork& work, int64_t micro_batch) {
  const Batch batch = at.is_first || at.is_last ? work.batch(micro_batch) : Batch();
  const Autocast autocast(work.amp, options_.device.type());
  const SavedBuffers statistics(*module_);  // they have counted this micro-batch
  at.stage.forward_again(micro_batch, batch, seeding(work.step, micro_batch));
  if (!at.is_last) return;
  const at::Tensor loss = loss_of(at.stage.output(micro_batch), batch, at);
  at.stage.set_loss(micro_batch, work.loss_scale != 1 ? loss * work.loss_scale : loss);
}

void Model::backward(Own& at, const StepWork& work, int64_t micro_batch) {
  const int64_t samples = plan().values.front().sizes.front();
  Values errors;
  for (const End& end : at.errors_in)
    for (auto& [value, error] : receive(at, end, /*errors=*/true, micro_batch, samples)) {
      const auto [known, is_new] = errors.try_emplace(value, error);
      if (!is_new) known->second = known->second + error;
    }
  const double begin = clock_->now();
  if (recomputes(at, micro_batch)) forward_again(at, work, micro_batch);
  if (work.before_backward)
    work.before_backward(at.stage.roots(micro_batch),
                         {.count = samples,
                          .again = &at != &stages_.front(),
                          .micro_batch = plan().number_in_direction(static_cast<int>(micro_batch))});
  const bool splits = plan().program.splits_backward;
  const Values of_inputs =
      splits ? at.stage.backward_inputs(micro_batch, errors) : at.stage.backward(micro_batch, errors);
  done({plan().program.backward_work(), at.number, static_cast<int>(micro_batch)}, begin);
  for (const End& end : at.errors_out) send(at, end, /*errors=*/true, micro_batch, of_inputs);
}

void Model::backward_weights(Own& at, int64_t micro_batch) {
  const double begin = clock_->now();
  at.stage.backward_weights(micro_batch);
  done({pipe::Work::weight_gradient, at.number, static_cast<int>(micro_batch)}, begin);
}

void Model::run_item(const pipe::Item& item, const StepWork& work) {
  if (item.work == pipe::Work::update) return;
  Own& at = own(item.stage);
  if (item.work == pipe::Work::forward)
    forward(at, work, item.micro_batch);
  else if (item.work == pipe::Work::weight_gradient)
    backward_weights(at, item.micro_batch);
  else
    backward(at, work, item.micro_batch);
}

at::Tensor Model::learn(const StepWork& work) {
  ++pass_;
  losses_.clear();
  spans_.clear();
  if (messages_->courier) meter_.start(*messages_->courier);
  is_learning_ = true;
  clock_->start();
  const auto& program = plan().program.items[pipeline_->place];
  // Where gradients of weights come later, no backward completes all gradients.
  const auto last = std::find_if(program.rbegin(), program.rend(),
                                 [](const pipe::Item& item) { return item.work == pipe::Work::backward; });
  const bool announces = stages_.size() == 1 && last != program.rend() && work.before_last_backward;
  std::vector<pipe::FilledItem> alone;
  for (const pipe::Item& item : program) alone.push_back({.item = item});
  for (const pipe::FilledItem& filled : work.items ? *work.items : alone) {
    const pipe::Item& item = filled.item;
    if (filled.extra >= 0) {
      run_extra(filled, work);
      continue;
    }
    if (announces && item == *last) work.before_last_backward();
    run_item(item, work);
  }
  ++totals_.passes;
  totals_.seconds += clock_->now();
  is_learning_ = false;
  if (messages_->courier) meter_.stop(*messages_->courier);
  at::Tensor sum;
  for (const at::Tensor& loss : losses_) sum = sum.defined() ? sum + loss : loss;
  losses_.clear();
  return sum;
}

at::Tensor Model::evaluate(const Batch& batch, int64_t micro_batch, const Stage::BeforePart& before_part) {
  at::Tensor output;
  for (Own& at : stages_) {
    if (at.direction != 0) continue;
    const Values inputs = take_inputs(at, micro_batch, batch.input.size(0));
    Values outputs = at.stage.evaluate(inputs, batch, before_part);
    for (const End& end : at.outputs) send(at, end, /*errors=*/false, micro_batch, outputs);
    if (at.is_last) output = outputs.at(at.stage.last_part());
  }
  return output;
}

std::optional<double> Model::loss(const StepWork& work) {
  const at::NoGradGuard no_grad;
  ++pass_;
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

std::optional<double> Model::metric(const Batch& batch, Amp amp) {
  const Evaluation evaluation(*module_);
  ++pass_;
  const Autocast autocast(amp, options_.device.type());
  const at::Tensor output = evaluate(batch, 0, [](int) {});
  return output.defined() ? std::optional(objective_->metric(output, batch)) : std::nullopt;
}

std::vector<pipe::StageSeconds> Model::take_stage_seconds() {
  std::vector<pipe::StageSeconds> means = std::exchange(stage_sums_, std::vector<pipe::StageSeconds>(plan().stages()));
  const auto passes = std::exchange(stage_passes_, std::vector<int64_t>(plan().stages()));
  for (size_t stage = 0; stage < means.size(); ++stage) {
    pipe::StageSeconds& mean = means[stage];
    const auto items = static_cast<double>(std::max<int64_t>(1, passes[stage]));
    mean.forward /= items;
    mean.input_gradient /= items;
    mean.weight_gradient /= items;
    if (!plan().program.splits_backward) mean.input_gradient = mean.weight_gradient = mean.input_gradient / 2;
  }
  return means;
}

void Model::sum_shared_gradients() {
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

std::unique_ptr<PipelinedModel> pipelined_model(std::shared_ptr<const Pipeline> pipeline, std::unique_ptr<Task> task,
                                                const PipelinedOptions& options) {
  return std::make_unique<Model>(std::move(pipeline), std::move(task), options);
}

}  // namespace spillway::runtime
