#include "tools/train_flags.h"

#include <charconv>
#include <cmath>

#include "core/error.h"

namespace spillway::tools {
namespace {

double fraction_named(const std::string& text, int world) {
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

void TrainFlags::add_tier_flags(CLI::App& command) {
  command
      .add_option("--host-budget", host_budget,
                  "Host bytes per rank for pages that left the device: 4GiB, 50% of the unconstrained peak, or none")
      ->capture_default_str();
  command.add_option("--disk", options.disk, "Directory for the pages that the host budget has no room for");
}

void TrainFlags::add_training_flags(CLI::App& command) {
  auto* steps = command.add_option("--steps", options.steps, "Training steps")->capture_default_str();
  command.add_option("--epochs", options.epochs, "Passes over the training cases")->excludes(steps);
  command
      .add_option("--budget", budget,
                  "Device bytes per rank: 600MiB, 16GB, 50% of the unconstrained peak (measured "
                  "first), or none")
      ->capture_default_str();
  add_tier_flags(command);
  add_optimizer_flags(command);
  command.add_flag("--kfac", options.use_kfac, "Precondition gradients by K-FAC");
  command.add_option("--kfac-strategy", strategy, "comm_opt, mem_opt or hybrid")->capture_default_str();
  command
      .add_option("--grad-worker-frac", grad_worker_frac,
                  "Share of ranks that precondition a layer, 1/ranks to 1, or "
                  "auto: the budget decides")
      ->capture_default_str();
  kfac::KfacOptions& k = options.kfac;
  command.add_option("--factor-interval", k.factor_interval, "Steps between factor updates")->capture_default_str();
  command.add_option("--inverse-interval", k.inverse_interval, "Steps between decompositions")->capture_default_str();
  auto* relative = command
                       .add_option("--relative-damping", k.relative_damping,
                                   "Damping as a share of a layer's mean eigenvalue product")
                       ->capture_default_str();
  command.add_option("--damping", damping, "Absolute damping, the same for every layer")->excludes(relative);
  command.add_option("--burn-in", k.burn_in, "First steps, in all of which factors are updated")->capture_default_str();
  command.add_option("--kl-clip", k.kl_clip, "Bound on the predicted change of the output, at the first step")
      ->capture_default_str();
  command.add_option("--kl-clip-steps", k.kl_clip_steps, "The bound falls as 1/(1 + step/this); inf keeps it")
      ->capture_default_str();
  command.add_option("--conv-factors", conv_factors, "full, separable or auto")->capture_default_str();
  command.add_option("--max-factor-dim", k.max_factor_dim, "auto goes separable above this side")
      ->capture_default_str();
  command.add_flag("--deterministic", options.deterministic, "Deterministic algorithms only");
  command
      .add_option("--validate-every", options.validate_every,
                  "Steps between measurements on the held-out cases; 0: "
                  "five in a run")
      ->capture_default_str();
  add_checkpoint_flags(command);
}

TrainOptions TrainFlags::resolve(int world) {
  if (device != "auto" && device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
    throw BadRequest(str("--device is '", device, "'; allowed is cpu, cuda, cuda:N or auto"));
  options.device = device == "auto" ? "cpu" : device;
  resolve_model();
  options.budget = BudgetRequest::parse(budget);
  options.host_budget = BudgetRequest::parse(host_budget);
  resolve_optimizer();
  options.kfac.strategy = kfac::strategy_named(strategy);
  options.kfac.conv_factors = kfac::conv_factors_named(conv_factors);
  if (damping != 0) options.kfac.damping = damping;
  options.choose_grad_worker_frac = grad_worker_frac == "auto" && options.kfac.strategy == kfac::Strategy::hybrid;
  if (grad_worker_frac != "auto") options.kfac.grad_worker_frac = fraction_named(grad_worker_frac, world);
  options.validate();
  return options = with_model_defaults(options);
}

}  // namespace spillway::tools
