#include "tools/cli/kfac_flags.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "runtime/models/model_info.h"

namespace spillway::tools {
namespace {

double parse_fraction(const std::string& text, int world) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const double workers = value * world;
  const bool whole = std::fabs(workers - std::round(workers)) < 1e-6;
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= 1 && whole) return value;
  std::string allowed = "auto";
  for (int k = 1; k <= world; ++k) allowed += str(", ", static_cast<double>(k) / world);
  throw BadRequest(str("--grad-worker-frac is '", text, "'; allowed with ", world, " rank(s) is ", allowed));
}

}  // namespace

void KfacFlags::add(CLI::App& command, TrainOptions& train) {
  command.add_flag("--kfac", train.use_kfac, "Precondition gradients by K-FAC");
  const size_t before = command.get_options().size();
  add_distribution(command, train.kfac);
  add_method(command, train.kfac);
  add_step_size(command, train);
  add_layers(command, train.kfac);
  const std::vector<CLI::Option*> all = command.get_options(nullptr);
  options.assign(all.begin() + before, all.end());
}

void KfacFlags::refuse_without_effect(const TrainOptions& train) const {
  for (const CLI::Option* option : options)
    if (!train.use_kfac && option->count() > 0)
      throw BadRequest(str(option->get_name(), " has no effect without --kfac"));
  const kfac::Strategy chosen = train.kfac.strategy;
  const bool fixed =
      chosen == kfac::Strategy::comm_opt || chosen == kfac::Strategy::mem_opt || chosen == kfac::Strategy::dp;
  if (fixed && grad_worker_frac != "auto")
    throw BadRequest(str("--grad-worker-frac is '", grad_worker_frac, "', but strategy ", strategy,
                         " says itself how many ranks precondition a layer; it is for hybrid and owner_reduce"));
}

void KfacFlags::add_distribution(CLI::App& command, kfac::KfacOptions& k) {
  command.add_option("--kfac-strategy", strategy, "comm_opt, mem_opt, hybrid, dp, owner_reduce or auto")
      ->capture_default_str();
  command
      .add_option("--grad-worker-frac", grad_worker_frac,
                  "Share of ranks that precondition a layer, 1/ranks to 1, or "
                  "auto: the budget decides")
      ->capture_default_str();
  command.add_option("--placement", placement, "round-robin, lpt-time, lpt-memory or measured")->capture_default_str();
  command.add_option("--factor-dtype", factor_dtype, "fp32, bf16 or fp16: how factors travel between ranks")
      ->capture_default_str();
  command.add_flag("--overlap-factors", k.overlap_factors,
                   "Send a layer's factors while backward goes on; takes memory for messages until the step's end");
}

void KfacFlags::add_method(CLI::App& command, kfac::KfacOptions& k) {
  command.add_option("--kfac-method", method, "eigen, pi or plain: how curvature is inverted")->capture_default_str();
  command.add_option("--convention", convention, "fisher, kaisa or dp_kfac: how statistics are scaled")
      ->capture_default_str();
  command.add_option("--factor-interval", factor_interval, "Steps between factor updates")->capture_default_str();
  command.add_option("--inverse-interval", inverse_interval, "Steps between decompositions, a multiple of the former")
      ->capture_default_str();
  command
      .add_option("--factor-decay", k.decay, "Share of a running average that stays when new factors come, 0 up to 1")
      ->capture_default_str();
  command.add_flag("--precompute-outer", k.precompute_outer,
                   "Keep 1/(v_G v_A + damping) of each layer instead of its eigenvalues, until the next decomposition");
  command
      .add_option("--warm-start", k.warm_start,
                  "Error of a preconditioned gradient up to which eigenvectors are kept; 0: always anew")
      ->capture_default_str();
  command.add_option("--staleness", k.staleness, "Steps that decompositions run beside the training; 0: none")
      ->capture_default_str();
  command.add_option("--interval-decay", interval_decay,
                     "FACTOR@EPOCH,…: from the start of that epoch on both intervals are multiplied by the factor");
}

void KfacFlags::add_step_size(CLI::App& command, TrainOptions& train) {
  auto* relative =
      command
          .add_option("--relative-damping", relative_damping, "Damping as a share of a layer's mean eigenvalue product")
          ->capture_default_str();
  command.add_option("--damping", damping, "Absolute damping, the same for every layer")->excludes(relative);
  command.add_option("--damping-decay", damping_decay,
                     "FACTOR@EPOCH,…: from the start of that epoch on the damping is multiplied by the factor");
  command
      .add_option("--adapt-damping", train.damping_adaptation,
                  "Steps between adaptations of the damping to the loss, by one more forward pass; 0: never")
      ->capture_default_str();
  command.add_option("--burn-in", train.kfac.burn_in, "First steps, in all of which factors are updated")
      ->capture_default_str();
  command.add_option("--kl-clip", kl_clip,
                     "Trust region of a step, in the loss's units squared, at the first step; default with fisher "
                     "3e-5, unet3d 1e-5, autoencoder 1e-3; else 1e-3");
  command.add_option("--kl-clip-steps", kl_clip_steps,
                     "It falls as 1/(1 + step/this); inf keeps it; default 10 with fisher, else inf; autoencoder inf");
}

void KfacFlags::add_layers(CLI::App& command, kfac::KfacOptions& k) {
  command.add_option("--kfac-skip", skip,
                     "Regular expression: layers with such names are left to the optimizer; or none; default ^head for "
                     "unet3d, else none");
  command.add_option("--conv-factors", conv_factors, "full, separable, block or auto")->capture_default_str();
  command
      .add_option("--max-factor-dim", k.max_factor_dim, "auto goes separable above this side, block keeps sides to it")
      ->capture_default_str();
  command
      .add_option("--max-linear-dim", k.max_linear_dim, "Linear layers with a longer side are left to the optimizer")
      ->capture_default_str();
  command.add_flag("--block-linear", k.block_linear, "They get factors in blocks of at most that side instead");
  command
      .add_option("--kfac-storage", storage, "fp32, bf16 or fp16: how factors and eigenbases are kept between steps")
      ->capture_default_str();
}

void KfacFlags::resolve(TrainOptions& train, int world) const {
  kfac::KfacOptions& k = train.kfac;
  k.strategy = kfac::parse_strategy(strategy);
  refuse_without_effect(train);
  k.placement = kfac::parse_placement(placement);
  k.factor_dtype = kfac::parse_factor_dtype(factor_dtype);
  k.storage = kfac::parse_factor_dtype(storage);
  k.conv_factors = kfac::parse_conv_factors(conv_factors);
  k.method = kfac::parse_method(method);
  k.convention = kfac::parse_convention(convention);
  k.factor_interval = static_cast<double>(factor_interval);
  k.inverse_interval = static_cast<double>(inverse_interval);
  k.relative_damping = relative_damping;
  k.damping = damping;
  train.damping_decay = parse_decays("--damping-decay", damping_decay);
  train.interval_decay = parse_decays("--interval-decay", interval_decay);
  const ModelInfo& info = model_info(train.model);
  const std::string left_alone = skip.value_or(std::string(info.kfac_skip));
  if (!left_alone.empty() && left_alone != "none") k.skip = {left_alone};
  auto clip = kfac::default_kl_clip(k.convention);
  if (k.convention == kfac::Convention::fisher) clip = {info.kfac_kl_clip, info.kfac_kl_clip_steps};
  const double steps = kl_clip_steps.value_or(clip.steps);
  if (!(steps > 0)) throw BadRequest(str("--kl-clip-steps is ", steps, "; allowed is more than 0"));
  k.kl_clip = kfac::harmonic(kl_clip.value_or(clip.value), steps);
  const bool automatic = k.strategy == kfac::Strategy::automatic;
  if (automatic && grad_worker_frac != "auto")
    throw BadRequest(str("--grad-worker-frac is '", grad_worker_frac, "'; allowed with --kfac-strategy auto is auto"));
  train.choose_grad_worker_frac = grad_worker_frac == "auto" && (automatic || k.strategy == kfac::Strategy::hybrid ||
                                                                 k.strategy == kfac::Strategy::owner_reduce);
  if (grad_worker_frac != "auto") k.grad_worker_frac = parse_fraction(grad_worker_frac, world);
}

}  // namespace spillway::tools
