#include "runtime/options/train_options.h"

#include <cmath>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/value_names.h"
#include "runtime/models/model_info.h"
#include "swap/tiers/disk_tier.h"

namespace spillway {
using namespace runtime;

BudgetRequest BudgetRequest::parse(std::string_view text) {
  if (text == "none") return {};
  BudgetRequest request;
  if (text.ends_with('%')) {
    request.percent = parse_number<double>(text.substr(0, text.size() - 1)).value_or(0);
    if (!(request.percent > 0 && request.percent <= 1000))
      throw BadRequest(str("cannot read '", text,
                           "' as a budget; write a percentage of the unconstrained peak such as "
                           "50%, a size such as 600MiB, or none"));
    request.kind = Kind::percent;
    return request;
  }
  request.kind = Kind::bytes;
  request.bytes = parse_bytes(text);
  if (request.bytes <= 0)
    throw BadRequest(str("a budget of '", text, "' is no budget; write at least 1 byte, or none"));
  return request;
}

namespace {

void require(bool good, std::string_view field, const auto& value, std::string_view allowed) {
  if (!good) throw BadRequest(str("TrainOptions: ", field, " is ", value, "; allowed is ", allowed));
}

// With larger numbers the bytes of a tensor, or the cases of a step on all ranks, would be no int64_t.
constexpr int64_t kMaxWidth = int64_t{1} << 24, kMaxLayers = int64_t{1} << 16, kMaxCases = int64_t{1} << 24;
constexpr int64_t kMaxMicroBatches = int64_t{1} << 24;

void validate_model(const ModelOptions& model, const DataOptions& data) {
  const ModelInfo& info = model_info(model.name);
  auto choice = [&](std::string_view field, int64_t value, int64_t own, int64_t least, int64_t most) {
    require(value == 0 || own > 0, field, value, str("none: ", model.name, " has no such choice"));
    require(value == 0 || value >= least, field, value, str(least, " or more"));
    require(value <= most, field, value, str("at most ", most));
  };
  choice("cases", data.cases, info.cases, 2, kMaxCases);
  choice("batch", data.batch, info.batch, 1, kMaxCases);
  choice("filters", model.filters, info.filters, 1, kMaxWidth);
  choice("hidden", model.hidden, info.hidden, 1, kMaxWidth);
  choice("layers", model.layers, info.layers, 1, kMaxLayers);
  choice("classes", model.classes, info.classes, 2, kMaxWidth);
  require(model.layout == Layout::contiguous || info.has_channels(), "memory_format", name(model.layout),
          str("contiguous: ", model.name, " has no channels"));
}

/// Checks the device and its engine, so that unsupported combinations are refused before anything starts.
void validate_memory(const MemoryOptions& o) {
  const bool cuda = o.device == "cuda" || o.device.starts_with("cuda:");
  const bool unified = o.engine == Engine::unified;
  require(cuda || o.device == "cpu", "device", o.device, "cpu, cuda or cuda:N");
  if (!cuda && unified)
    throw BadRequest(
        "the unified engine pages by CUDA's Unified Memory, so it needs a GPU: --device cuda. On the CPU the engine "
        "is --engine gate");
  if (unified && (o.host_budget.kind != BudgetRequest::Kind::none || !o.disk.empty()))
    throw BadRequest(
        "with the unified engine the driver decides what host memory is used: --host-budget and --disk need --engine "
        "gate");
  require(o.split_bytes >= 0, "split_bytes", o.split_bytes, "1 or more");
  const bool host_given = o.host_budget.kind == BudgetRequest::Kind::bytes;
  require(o.disk.empty() || !host_given || o.host_budget.bytes >= swap::DiskTier::kMinHostBytes, "host_budget",
          o.host_budget.bytes, str(swap::DiskTier::kMinHostBytes, " or more, with a disk"));
}

void validate_rest(const OptimizerOptions& o, bool kfac) {
  const bool of_matrices = is_of_matrices(o.kind);
  if (of_matrices && kfac)
    throw BadRequest(str("optimizer is ", name(o.kind), "; allowed with K-FAC are sgd, adam, adamw and lamb"));
  if (of_matrices && !o.rest)
    throw BadRequest(str("optimizer is ", name(o.kind), ", which is for matrices; it needs a rest_optimizer"));
  if (!o.rest) return;
  if (!of_matrices && !kfac)
    throw BadRequest(str("rest_optimizer is ", name(o.rest->kind), "; allowed is none, because ", name(o.kind),
                         " serves all parameters: K-FAC, muon and soap leave some"));
  if (is_of_matrices(o.rest->kind))
    throw BadRequest(str("rest_optimizer is ", name(o.rest->kind), "; allowed is sgd, adam, adamw or lamb"));
  require(o.rest->lr > 0 && std::isfinite(o.rest->lr), "rest_lr", o.rest->lr, "above 0 and finite");
}

void validate_optimizer(const OptimizerOptions& o) {
  require(o.lr > 0 && std::isfinite(o.lr), "lr", o.lr, "above 0 and finite");
  require(o.momentum >= 0 && o.momentum < 1, "momentum", o.momentum, "0 up to, not including, 1");
  require(!o.nesterov || (o.kind == OptimizerKind::sgd && o.momentum > 0), "nesterov", "on",
          "off without sgd and momentum");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "weight_decay", o.weight_decay, "0 or more and finite");
  require(o.warmup >= 0, "warmup", o.warmup, "0 or more");
  require(o.clip_norm >= 0 && std::isfinite(o.clip_norm), "clip_norm", o.clip_norm, "0 or more and finite");
  require(o.accumulate >= 1, "accumulate", o.accumulate, "1 or more");
  require(o.accumulate <= kMaxMicroBatches, "accumulate", o.accumulate, str("at most ", kMaxMicroBatches));
}

void validate_gradients(const GradientExchangeOptions& o) {
  require(o.bucket_bytes == 0 || (o.bucket_bytes >= 1024 && o.bucket_bytes <= int64_t{1} << 30),
          "gradient_bucket_bytes", o.bucket_bytes, "1024 (1 KiB) to 1073741824 (1 GiB), or 0: automatic");
  require(o.buffer_bytes >= 0, "gradient_buffer_bytes", o.buffer_bytes, "0 or more");
}

void validate_checkpoint(const CheckpointOptions& o) {
  require(o.every >= 0, "checkpoint_every", o.every, "0 or more");
  require(o.every == 0 || !o.folder.empty(), "checkpoint_every", o.every, "0 without a folder for checkpoints");
  require(!o.resume || !o.folder.empty(), "resume", "on", "off without a folder for checkpoints");
}

void validate_pipeline(const TrainOptions& all) {
  const PipelineOptions& o = all.pipeline;
  require(o.ranks >= 1 && o.ranks <= PipelineOptions::kMaxRanks, "pipeline", o.ranks,
          str("1 to ", PipelineOptions::kMaxRanks));
  require(o.chunks >= 1 && o.chunks <= PipelineOptions::kMaxRanks, "chunks", o.chunks,
          str("1 to ", PipelineOptions::kMaxRanks));
  for (int64_t parts : o.cut) require(parts >= 1, "cut", parts, "1 or more parts of each stage");
  require(o.ranks > 1 || o.schedule != PipelineSchedule::chimera, "schedule", name(o.schedule),
          "one of the others without a pipeline");
  require(o.ranks > 1 || !o.recompute, "recompute", "on", "off without a pipeline");
  const bool refreshes_wait =
      all.kfac.enabled && o.ranks > 1 && o.refresh != RefreshTurns::at_once && o.kfac_work == KfacWork::bubbles;
  require(!o.choose_interval || refreshes_wait, "inverse_interval", "auto",
          "a number, but with K-FAC in the waits of a pipeline");
  if (o.ranks == 1) return;
  const bool refreshes_late = all.kfac.enabled && o.refresh != RefreshTurns::at_once;
  require(!refreshes_late || all.kfac.preconditioner.burn_in == 0, "burn_in", all.kfac.preconditioner.burn_in,
          str("0 with refresh ", name(o.refresh)));
  require(all.precision.amp != Amp::fp16, "amp", name(all.precision.amp),
          "off or bf16 with a pipeline, where an overflow would be known too late");
  require(all.memory.device == "cpu", "device", all.memory.device, "cpu with a pipeline");
  const bool planned = all.kfac.time_share || !all.kfac.preconditioner.layer_curvature.empty();
  require(!planned, "kfac_time", "given", "none with a pipeline");
  require(!all.kfac.enabled || o.refresh == RefreshTurns::at_once || all.kfac.interval_decay.empty(), "interval_decay",
          "given", "none with a pipeline, but with refresh at-once");
}

void validate_kfac(const KfacTrainingOptions& o, const OptimizerOptions& optimizer, bool refreshes_are_late) {
  require(o.damping_adaptation >= 0, "damping_adaptation", o.damping_adaptation, "0 or more");
  if (!o.enabled) return;
  require(optimizer.clip_norm == 0, "clip_norm", optimizer.clip_norm, "0 with K-FAC, whose kl_clip bounds its steps");
  kfac::KfacOptions preconditioner = o.preconditioner;
  if (refreshes_are_late) preconditioner.staleness = 0;  // it is a delay of refreshes, which have no solver's thread
  preconditioner.validate();
  if (o.time_share)
    require(*o.time_share > 0 && *o.time_share <= 1, "kfac_time", *o.time_share, "(0, 1], 100 % at most");
  const bool planned = o.time_share || !o.preconditioner.layer_curvature.empty();
  require(!planned || o.interval_decay.empty(), "interval_decay", "given", "none with a plan of curvature");
  require(!o.time_share || o.preconditioner.layer_curvature.empty(), "kfac_time", *o.time_share,
          "none with a plan of curvature");
  require(!o.preconditioner.overlap_factors || optimizer.accumulate == 1, "accumulate", optimizer.accumulate,
          "1 with overlap_factors");
}

constexpr auto kOptimizers = value_names<OptimizerKind>({{OptimizerKind::sgd, "sgd"},
                                                         {OptimizerKind::adam, "adam"},
                                                         {OptimizerKind::adamw, "adamw"},
                                                         {OptimizerKind::lamb, "lamb"},
                                                         {OptimizerKind::muon, "muon"},
                                                         {OptimizerKind::soap, "soap"}});

}  // namespace

OptimizerKind parse_optimizer(std::string_view name) {
  return kOptimizers.parse("optimizer", name);
}
bool is_optimizer(std::string_view name) {
  return kOptimizers.find(name).has_value();
}
std::string_view name(OptimizerKind kind) {
  return kOptimizers.name(kind);
}

bool is_of_matrices(OptimizerKind kind) {
  return kind == OptimizerKind::muon || kind == OptimizerKind::soap;
}

double default_lr(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd:
      return 0.1;
    case OptimizerKind::lamb:
      return 5e-3;
    case OptimizerKind::soap:
      return 3e-3;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::muon:
      break;
  }
  return 5e-4;
}

double default_weight_decay(OptimizerKind kind) {
  return kind == OptimizerKind::sgd || kind == OptimizerKind::adam ? 0 : 0.01;
}

void LossScaling::validate() const {
  if (!(initial >= 1 && initial <= kMaxScale))
    throw BadRequest(str("loss_scale is ", initial, "; allowed is 1 to 2^127"));
  if (growth_interval < 1)
    throw BadRequest(str("loss_scale_interval is ", growth_interval, "; allowed is 1 or more steps"));
}

void TrainOptions::validate() const {
  validate_model(model, data);
  validate_memory(memory);
  require(epochs >= 0, "epochs", epochs, "0 or more");
  require(epochs > 0 || steps >= 1, "steps", steps, "1 or more");
  validate_optimizer(optimizer);
  validate_rest(optimizer, kfac.enabled);
  validate_gradients(gradients);
  validate_pipeline(*this);
  precision.loss_scaling.validate();
  require(validate_every >= 0, "validate_every", validate_every, "0 or more");
  validate_checkpoint(checkpoint);
  validate_kfac(kfac, optimizer, pipeline.ranks > 1 && pipeline.refresh != RefreshTurns::at_once);
}

TrainOptions with_model_defaults(TrainOptions options) {
  const ModelInfo& info = model_info(options.model.name);
  auto fill = [](int64_t& value, int64_t own) {
    if (value == 0) value = own;
  };
  fill(options.data.cases, info.cases);
  fill(options.data.batch, info.batch);
  fill(options.model.filters, info.filters);
  fill(options.model.hidden, info.hidden);
  fill(options.model.layers, info.layers);
  fill(options.model.classes, info.classes);
  return options;
}

}  // namespace spillway
