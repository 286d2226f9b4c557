#include "runtime/options/train_options.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "runtime/models/autocast.h"
#include "runtime/models/memory_format.h"
#include "runtime/models/model_info.h"
#include "swap/tiers/disk_tier.h"

namespace spillway {

BudgetRequest BudgetRequest::parse(std::string_view text) {
  if (text == "none") return {};
  BudgetRequest request;
  if (text.ends_with('%')) {
    std::string_view number = text.substr(0, text.size() - 1);
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), request.percent);
    if (error != std::errc() || end != number.data() + number.size() ||
        !(request.percent > 0 && request.percent <= 1000))
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

void validate_model(const TrainOptions& o) {
  const ModelInfo& info = model_info(o.model);
  auto choice = [&](std::string_view field, int64_t value, int64_t own, int64_t least) {
    require(value == 0 || own > 0, field, value, str("none: ", o.model, " has no such choice"));
    require(value == 0 || value >= least, field, value, str(least, " or more"));
  };
  choice("cases", o.cases, info.cases, 2);
  choice("batch", o.batch, info.batch, 1);
  choice("filters", o.filters, info.filters, 1);
  choice("hidden", o.hidden, info.hidden, 1);
  choice("layers", o.layers, info.layers, 1);
  choice("classes", o.classes, info.classes, 2);
  require(parse_memory_format(o.memory_format) == Layout::contiguous || info.has_channels(), "memory_format",
          o.memory_format, str("contiguous: ", o.model, " has no channels"));
}

void validate_optimizer(const TrainOptions& o) {
  const bool known = o.optimizer == "sgd" || o.optimizer == "adam" || o.optimizer == "adamw" || o.optimizer == "lamb";
  require(known, "optimizer", o.optimizer, "sgd, adam, adamw or lamb");
  require(o.lr > 0 && std::isfinite(o.lr), "lr", o.lr, "above 0 and finite");
  require(o.momentum >= 0 && o.momentum < 1, "momentum", o.momentum, "0 up to, not including, 1");
  require(!o.nesterov || (o.optimizer == "sgd" && o.momentum > 0), "nesterov", "on", "off without sgd and momentum");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "weight_decay", o.weight_decay, "0 or more and finite");
  require(o.warmup >= 0, "warmup", o.warmup, "0 or more");
  require(o.clip_norm >= 0 && std::isfinite(o.clip_norm), "clip_norm", o.clip_norm, "0 or more and finite");
  require(o.clip_norm == 0 || !o.use_kfac, "clip_norm", o.clip_norm, "0 with K-FAC, whose kl_clip bounds its steps");
}

/// Checks the device and its engine, so that unsupported combinations are refused before anything starts.
void validate_device(const TrainOptions& o) {
  const bool cuda = o.device == "cuda" || o.device.starts_with("cuda:");
  require(cuda || o.device == "cpu", "device", o.device, "cpu, cuda or cuda:N");
  require(o.engine == "gate" || o.engine == "unified", "engine", str("'", o.engine, "'"), "gate or unified");
  if (!cuda && o.engine == "unified")
    throw BadRequest(
        "the unified engine pages by CUDA's Unified Memory, so it needs a card: --device cuda. On the CPU the engine "
        "is --engine gate");
  if (o.engine == "unified" && (o.host_budget.kind != BudgetRequest::Kind::none || !o.disk.empty()))
    throw BadRequest(
        "with the unified engine the driver decides what host memory is used: --host-budget and --disk need --engine "
        "gate");
}

}  // namespace

void TrainOptions::validate() const {
  validate_model(*this);
  validate_device(*this);
  require(split_bytes >= 1, "split_bytes", split_bytes, "1 or more");
  require(epochs >= 0, "epochs", epochs, "0 or more");
  require(epochs > 0 || steps >= 1, "steps", steps, "1 or more");
  const bool host_given = host_budget.kind == BudgetRequest::Kind::bytes;
  require(disk.empty() || !host_given || host_budget.bytes >= swap::DiskTier::kMinHostBytes, "host_budget",
          host_budget.bytes, str(swap::DiskTier::kMinHostBytes, " or more, with a disk"));
  validate_optimizer(*this);
  require(accumulate >= 1, "accumulate", accumulate, "1 or more");
  require(gradient_bucket_bytes == 0 || (gradient_bucket_bytes >= 1024 && gradient_bucket_bytes <= int64_t{1} << 30),
          "gradient_bucket_bytes", gradient_bucket_bytes,
          "1024 (1 KiB) to 1073741824 (1 GiB), or 0: as the links suggest");
  require(gradient_buffer_bytes >= 0, "gradient_buffer_bytes", gradient_buffer_bytes, "0 or more");
  check_amp(amp);
  loss_scaling.validate();
  require(validate_every >= 0, "validate_every", validate_every, "0 or more");
  require(checkpoint_every >= 0, "checkpoint_every", checkpoint_every, "0 or more");
  require(checkpoint_every == 0 || !checkpoint.empty(), "checkpoint_every", checkpoint_every,
          "0 without a folder for checkpoints");
  require(!resume || !checkpoint.empty(), "resume", "on", "off without a folder for checkpoints");
  require(damping_adaptation >= 0, "damping_adaptation", damping_adaptation, "0 or more");
  if (!use_kfac) return;
  kfac.validate();
  require(!kfac.overlap_factors || accumulate == 1, "accumulate", accumulate, "1 with overlap_factors");
}

TrainOptions with_model_defaults(TrainOptions options) {
  const ModelInfo& info = model_info(options.model);
  auto fill = [](int64_t& value, int64_t own) {
    if (value == 0) value = own;
  };
  fill(options.cases, info.cases);
  fill(options.batch, info.batch);
  fill(options.filters, info.filters);
  fill(options.hidden, info.hidden);
  fill(options.layers, info.layers);
  fill(options.classes, info.classes);
  return options;
}

}  // namespace spillway
