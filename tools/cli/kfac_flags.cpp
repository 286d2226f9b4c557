#include "tools/cli/kfac_flags.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/host/text_file.h"
#include "core/parse_number.h"
#include "runtime/models/model_info.h"
#include "runtime/options/curvature_json.h"
#include "tools/cli/numbers.h"

namespace spillway::tools {
using namespace runtime;
namespace {

double parse_fraction(const std::string& text, int world) {
  const double value = parse_number<double>(text).value_or(0), workers = value * world;
  const bool whole = std::fabs(workers - std::round(workers)) < 1e-6;
  if (value > 0 && value <= 1 && whole) return value;
  std::string allowed = "auto";
  for (int k = 1; k <= world; ++k) allowed += str(", ", static_cast<double>(k) / world);
  throw BadRequest(str("--grad-worker-frac is '", text, "'; allowed with ", world, " rank(s) is ", allowed));
}

// True for flags whose values a plan of curvature holds.
bool is_in_plan(std::string_view flag) {
  return flag == "--factor-interval" || flag == "--inverse-interval" || flag == "--factor-samples" ||
         flag == "--kfac-rank" || flag == "--kfac-time";
}

// Reads a percentage above 0, up to 100%, as a share.
double parse_share(std::string_view flag, const std::string& text) {
  const std::string_view number(text.data(), text.ends_with('%') ? text.size() - 1 : 0);
  const double percent = parse_number<double>(number).value_or(0);
  if (percent > 0 && percent <= 100) return percent / 100;
  throw BadRequest(str(flag, " is '", text, "'; allowed is a percentage above 0%, up to 100%, such as 20%"));
}

std::string text_of(const std::string& path) {
  try {
    return read_text_file(path);
  } catch (const BadRequest& error) {
    throw BadRequest(str("--kfac-plan '", path, "' cannot be read: ", error.what()));
  }
}

}  // namespace

void KfacFlags::add(CLI::App& command, TrainOptions& train) {
  command.option_defaults()->group("K-FAC");
  command.add_flag("--kfac", train.kfac.enabled, "Precondition gradients with K-FAC");
  const size_t before = command.get_options().size();
  add_intervals(command, train.kfac.preconditioner);
  add_plan(command);
  add_method(command, train.kfac.preconditioner);
  add_damping(command, train);
  add_step_size(command);
  add_layers(command, train.kfac.preconditioner);
  add_distribution(command, train.kfac.preconditioner);
  const std::vector<CLI::Option*> all = command.get_options(nullptr);
  options.assign(all.begin() + before, all.end());
}

void KfacFlags::refuse_without_effect(const TrainOptions& train) const {
  for (const CLI::Option* option : options)
    if (!train.kfac.enabled && option->count() > 0)
      throw BadRequest(str(option->get_name(), " has no effect without --kfac"));
  for (const CLI::Option* option : options)
    if (plan_file && option->count() > 0 && is_in_plan(option->get_name()))
      throw BadRequest(str(option->get_name(), " has no effect with --kfac-plan, which says the same of each layer"));
  const kfac::Strategy chosen = train.kfac.preconditioner.strategy;
  const bool fixed =
      chosen == kfac::Strategy::comm_opt || chosen == kfac::Strategy::mem_opt || chosen == kfac::Strategy::dp;
  if (fixed && grad_worker_frac != "auto")
    throw BadRequest(str("--grad-worker-frac is '", grad_worker_frac, "', but strategy ", strategy,
                         " says itself how many ranks precondition a layer; it is for hybrid and owner_reduce"));
}

void KfacFlags::add_intervals(CLI::App& command, kfac::KfacOptions& k) {
  const auto first = kfac::KfacOptions{}.at(0), later = kfac::KfacOptions{}.in_long_run();
  const auto described = [](double at_first, double after) {
    return str(at_first, "; ", after, " from step ", kfac::kStartSteps, " on");
  };
  add_number(command, "--factor-interval", factor_interval, "Update factors every N steps; 1 or more")
      ->type_name("N")
      ->default_str(described(first.factor_interval, later.factor_interval));
  command
      .add_option("--inverse-interval", inverse_interval,
                  "Decompose factors every N steps, a multiple of --factor-interval; auto, with --pipeline: as often "
                  "as bubbles allow")
      ->type_name("N")
      ->default_str(described(first.inverse_interval, later.inverse_interval));
  command
      .add_option(
          "--interval-decay", interval_decay,
          "Multiply both intervals by FACTOR from the start of EPOCH on; several with commas; 2 halves the updates")
      ->type_name("FACTOR@EPOCH")
      ->default_str("none");
  add_number(command, "--burn-in", k.burn_in, "Update factors in each of the first N steps; 0 or more")
      ->type_name("N")
      ->capture_default_str();
  add_number(command, "--factor-decay", k.decay,
             "Weight of the old value in a factor's running average; at least 0 and below 1")
      ->type_name("X")
      ->capture_default_str();
  command
      .add_option("--factor-samples", factor_samples,
                  "Positions that a factor update samples: exact (all), auto, or at least N, 1 or more")
      ->type_name("N")
      ->capture_default_str();
}

void KfacFlags::add_plan(CLI::App& command) {
  command
      .add_option(
          "--kfac-time", time_share,
          "Limit K-FAC's work to N% of a first-order step's by choosing rows, ranks and intervals; at most 100%")
      ->type_name("N%")
      ->default_str("no limit");
  command
      .add_option("--kfac-plan", plan_file,
                  "JSON file with each layer's rows, rank and interval, as --json writes them")
      ->type_name("FILE")
      ->default_str("none");
}

void KfacFlags::add_method(CLI::App& command, kfac::KfacOptions& k) {
  command
      .add_option("--kfac-method", method,
                  "Inversion method: eigen (exact, in the factors' eigenbases), pi or plain (Cholesky inverses of "
                  "damped factors)")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--convention", convention,
                  "How sums are scaled to factors and how running averages start: fisher, kaisa or dp_kfac")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--kfac-rank", kfac_rank,
                  "With eigen: number of eigenvectors kept per factor: full (all), auto, or at most N, 1 or more")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--precompute-outer", k.precompute_outer,
                   "With eigen: store 1/(v_G v_A + damping) of each layer instead of dividing in each step");
  add_number(command, "--warm-start", k.warm_start,
             "Keep the previous eigenvectors while the relative error is at most X, below 1; 0: always decompose")
      ->type_name("X")
      ->capture_default_str();
  add_number(
      command, "--staleness", k.staleness,
      "Decompose during N steps of training, and use the result afterwards; at most --inverse-interval; 0: at once")
      ->type_name("N")
      ->capture_default_str();
}

void KfacFlags::add_damping(CLI::App& command, TrainOptions& train) {
  command.option_defaults()->group("K-FAC: damping and step size");
  auto* relative = add_number(
      command, "--relative-damping", relative_damping,
      "Damping as a share of the curvature, the mean eigenvalue product that --damping-scope selects; above 0");
  relative->type_name("X")->default_str("0.1 with scope network, 0.3 with layer");
  auto* scope = command.add_option("--damping-scope", damping_scope,
                                   "Curvature that --relative-damping scales: layer (the layer's), or network (its "
                                   "geometric mean with the network's running maximum)");
  scope->type_name("NAME")->default_str("fisher network (unet3d and autoencoder layer), else layer");
  add_number(command, "--damping", damping,
             "Absolute damping, the same for every layer, instead of --relative-damping; above 0")
      ->type_name("X")
      ->excludes(relative)
      ->excludes(scope);
  command
      .add_option("--damping-decay", damping_decay,
                  "Multiply the damping by FACTOR from the start of EPOCH on; several with commas")
      ->type_name("FACTOR@EPOCH")
      ->default_str("none");
  add_number(command, "--adapt-damping", train.kfac.damping_adaptation,
             "Adapt the damping to the loss every N steps, with one more forward pass; 0: never")
      ->type_name("N")
      ->capture_default_str();
}

void KfacFlags::add_step_size(CLI::App& command) {
  add_number(command, "--kl-clip", kl_clip,
             "Trust region (KL clip) of the first step, in squared units of the loss; above 0")
      ->type_name("X")
      ->default_str("fisher inf (unet3d 1e-5, autoencoder 1e-3), else 1e-3");
  add_number(command, "--kl-clip-steps", kl_clip_steps,
             "Shrink the trust region as 1/(1 + step/N); inf: keep it; above 0")
      ->type_name("N")
      ->default_str("inf (unet3d 10)");
  add_number(command, "--norm-clip", norm_clip,
             "Clip a step's norm to X times the norm of the weights that K-FAC preconditions; inf: off; above 0")
      ->type_name("X")
      ->default_str("fisher 0.02, with --kl-clip inf (unet3d and autoencoder inf), else inf");
}

void KfacFlags::add_layers(CLI::App& command, kfac::KfacOptions& k) {
  command.option_defaults()->group("K-FAC: layers and state");
  command
      .add_option("--kfac-skip", skip, "Leave layers whose names contain a match of REGEX to --rest-optimizer; or none")
      ->type_name("REGEX")
      ->default_str("unet3d and bp3d ^head, resnet50 ^fc, else none");
  command
      .add_option("--conv-factors", conv_factors,
                  "Factors of convolutions: full, separable, block, or auto (separable above --max-factor-dim)")
      ->type_name("NAME")
      ->capture_default_str();
  add_number(command, "--max-factor-dim", k.max_factor_dim,
             "Maximum side of A with --conv-factors auto, and of a block; 1 or more")
      ->type_name("N")
      ->capture_default_str();
  add_number(command, "--max-linear-dim", k.max_linear_dim,
             "Leave linear layers with a side above N to --rest-optimizer; 1 or more")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--block-linear", k.block_linear,
                   "Give linear layers with a side above --max-linear-dim factors in blocks of that side instead");
  command
      .add_option("--kfac-storage", storage,
                  "Type in which factors and eigenbases are stored between steps: fp32, bf16 or fp16")
      ->type_name("NAME")
      ->capture_default_str();
}

void KfacFlags::add_distribution(CLI::App& command, kfac::KfacOptions& k) {
  command.option_defaults()->group("K-FAC: ranks");
  command
      .add_option("--kfac-strategy", strategy,
                  "Distribution of K-FAC over ranks: hybrid, comm_opt, mem_opt, owner_reduce, dp, or auto: the budget "
                  "chooses (not dp)")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--grad-worker-frac", grad_worker_frac,
                  "Share of ranks that precondition a layer, 1/ranks to 1, or auto: the budget chooses")
      ->type_name("SHARE")
      ->capture_default_str();
  command
      .add_option("--placement", placement,
                  "Rule that assigns decompositions to ranks: lpt-time, lpt-memory, round-robin or measured")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--factor-dtype", factor_dtype, "Type in which factors are sent between ranks: fp32, bf16 or fp16")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_flag("--overlap-factors", k.overlap_factors,
                   "Send factors during backward; this takes memory and needs --accumulate 1");
}

void KfacFlags::resolve_interval(TrainOptions& train) const {
  // A run that chooses begins with a cycle that has room in most pipelines.
  constexpr int64_t kFirstTried = 5;
  train.pipeline.choose_interval = inverse_interval == "auto";
  kfac::KfacOptions& k = train.kfac.preconditioner;
  if (factor_interval) k.factor_interval = static_cast<double>(*factor_interval);
  if (inverse_interval) {
    const auto steps = train.pipeline.choose_interval ? kFirstTried : parse_number<int64_t>(*inverse_interval);
    if (!steps)
      throw BadRequest(str("--inverse-interval is '", *inverse_interval, "'; allowed is a number of steps, or auto"));
    k.inverse_interval = static_cast<double>(*steps);
  }
  const bool refreshes_late = train.pipeline.ranks > 1 && train.pipeline.refresh != RefreshTurns::at_once;
  if (!train.pipeline.choose_interval && !refreshes_late) return;
  // A layer's factors and its inverse are renewed from the statistics of one step.
  const double interval = k.at(0).inverse_interval;
  if (factor_interval && static_cast<double>(*factor_interval) != interval)
    throw BadRequest(str("--factor-interval is ", *factor_interval, "; allowed with --refresh ",
                         name(train.pipeline.refresh), " is the --inverse-interval, ",
                         inverse_interval.value_or(str(interval))));
  k.factor_interval = k.inverse_interval = interval;
}

void KfacFlags::resolve_plan(TrainOptions& train) const {
  if (time_share) train.kfac.time_share = parse_share("--kfac-time", *time_share);
  if (!plan_file) return;
  const std::string text = text_of(*plan_file);
  try {
    train.kfac.preconditioner.layer_curvature = parse_curvature(text);
  } catch (const BadRequest& error) {
    throw BadRequest(str("--kfac-plan '", *plan_file, "': ", error.what()));
  }
}

void KfacFlags::resolve_step_size(TrainOptions& train) const {
  kfac::KfacOptions& k = train.kfac.preconditioner;
  const ModelInfo& info = model_info(train.model.name);
  const bool is_measured = k.convention == kfac::Convention::fisher && info.kfac_kl_clip;
  if (relative_damping) k.relative_damping = *relative_damping;
  if (damping) k.damping = *damping;
  if (is_measured && !damping) k.damping_scope = kfac::DampingScope::layer;
  if (damping_scope) k.damping_scope = kfac::parse_damping_scope(*damping_scope);
  const double clip = kl_clip.value_or(is_measured ? *info.kfac_kl_clip : kfac::default_kl_clip(k.convention));
  const double steps =
      kl_clip_steps.value_or(is_measured ? info.kfac_kl_clip_steps : std::numeric_limits<double>::infinity());
  if (!(steps > 0)) throw BadRequest(str("--kl-clip-steps is ", steps, "; allowed is more than 0"));
  if (kl_clip_steps && std::isinf(clip)) throw BadRequest("--kl-clip-steps has no effect without --kl-clip");
  if (kl_clip || !std::isinf(clip)) k.kl_clip = kfac::harmonic(clip, steps);
  k.norm_clip = norm_clip;
}

void KfacFlags::resolve(TrainOptions& train, int world) const {
  kfac::KfacOptions& k = train.kfac.preconditioner;
  k.strategy = kfac::parse_strategy(strategy);
  refuse_without_effect(train);
  k.placement = kfac::parse_placement(placement);
  k.factor_dtype = kfac::parse_factor_dtype(factor_dtype);
  k.storage = kfac::parse_factor_dtype(storage);
  k.factor_samples = kfac::parse_factor_samples(factor_samples);
  k.eigen_rank = kfac::parse_eigen_rank(kfac_rank);
  k.conv_factors = kfac::parse_conv_factors(conv_factors);
  k.method = kfac::parse_method(method);
  k.convention = kfac::parse_convention(convention);
  resolve_interval(train);
  resolve_plan(train);
  resolve_step_size(train);
  train.kfac.damping_decay = parse_decays("--damping-decay", damping_decay);
  train.kfac.interval_decay = parse_decays("--interval-decay", interval_decay);
  const ModelInfo& info = model_info(train.model.name);
  const std::string left_alone = skip.value_or(std::string(info.output));
  if (!left_alone.empty() && left_alone != "none") k.skip = {left_alone};
  const bool automatic = k.strategy == kfac::Strategy::automatic;
  if (automatic && grad_worker_frac != "auto")
    throw BadRequest(str("--grad-worker-frac is '", grad_worker_frac, "'; allowed with --kfac-strategy auto is auto"));
  train.kfac.choose_grad_worker_frac =
      grad_worker_frac == "auto" &&
      (automatic || k.strategy == kfac::Strategy::hybrid || k.strategy == kfac::Strategy::owner_reduce);
  if (grad_worker_frac != "auto") k.grad_worker_frac = parse_fraction(grad_worker_frac, world);
}

}  // namespace spillway::tools
