// The flags of the optimizer and of checkpoints.
#include "core/error.h"
#include "runtime/models/model_info.h"
#include "tools/cli/numbers.h"
#include "tools/cli/train_flags.h"

namespace spillway::tools {
using namespace runtime;
namespace {

/// Returns the default of `--rest-lr`: the main optimizer's rate where it suits `rest` too, else the rate of `rest`.
double default_rest_lr(const OptimizerOptions& main, OptimizerKind rest, const TrainOptions& options) {
  const bool is_adam = rest == OptimizerKind::adam || rest == OptimizerKind::adamw;
  if (is_adam && options.kfac.enabled && main.kind == OptimizerKind::sgd)
    return model_info(options.model.name).kfac_rest_lr;
  const bool shares_rate = rest == main.kind || (is_adam && is_of_matrices(main.kind));
  return shares_rate ? main.lr : default_lr(rest);
}

}  // namespace

void TrainFlags::add_optimizer_flags(CLI::App& command) {
  command.option_defaults()->group("Optimizer");
  command.add_option("--optimizer", optimizer, "Optimizer: sgd, adam, adamw, lamb, muon or soap")
      ->type_name("NAME")
      ->default_str("adam, with --kfac sgd");
  add_number(command, "--lr", lr, "Learning rate; above 0")
      ->type_name("X")
      ->default_str("sgd 0.1 (unet3d with --kfac 1), adam, adamw and muon 5e-4, lamb 5e-3, soap 3e-3");
  add_rest_flags(command);
  add_number(command, "--momentum", momentum, "Momentum of sgd; at least 0 and below 1")
      ->type_name("X")
      ->default_str("0.9");
  command.add_flag("--nesterov", options.optimizer.nesterov, "Use Nesterov momentum with sgd");
  add_number(command, "--weight-decay", weight_decay,
             "Weight decay: an L2 penalty with sgd and adam, decoupled with all others; 0 or more")
      ->type_name("X")
      ->default_str("sgd and adam 0, else 0.01");
  add_number(command, "--warmup", options.optimizer.warmup,
             "Steps over which the learning rate warms up linearly; 0 or more")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--lr-decay", lr_decay,
                  "Multiply the learning rate by FACTOR from the start of EPOCH on; several with commas")
      ->type_name("FACTOR@EPOCH")
      ->default_str("none");
  add_number(command, "--clip-norm", options.optimizer.clip_norm,
             "Clip the global gradient norm to X; 0: off; not with --kfac")
      ->type_name("X")
      ->capture_default_str();
  add_number(command, "--accumulate", options.optimizer.accumulate,
             "Micro-batches per step, whose gradients are averaged in one allreduce; 1 or more")
      ->type_name("N")
      ->capture_default_str();
}

void TrainFlags::add_rest_flags(CLI::App& command) {
  command
      .add_option("--rest-optimizer", rest_optimizer,
                  "Optimizer of the parameters that K-FAC, muon and soap do not update: sgd, adam, adamw or lamb")
      ->type_name("NAME")
      ->default_str("adam; adamw with muon and soap");
  add_number(command, "--rest-lr", rest_lr, "Learning rate of --rest-optimizer; above 0")
      ->type_name("X")
      ->default_str("adam and adamw: with --kfac 1e-3 (unet3d 0.05), with muon and soap --lr");
}

void TrainFlags::add_precision_flags(CLI::App& command) {
  command.option_defaults()->group("Precision and layout");
  command.add_option("--amp", amp, "Run forward and loss under autocast to bf16 or fp16; or off")
      ->type_name("NAME")
      ->capture_default_str();
  add_number(command, "--loss-scale", options.precision.loss_scaling.initial,
             "Initial loss scale with fp16; it is halved when gradients overflow; 1 or more")
      ->type_name("X")
      ->capture_default_str();
  add_number(command, "--loss-scale-interval", options.precision.loss_scaling.growth_interval,
             "With fp16: double the loss scale after N steps without an overflow; 1 or more")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--memory-format", memory_format,
                  "Memory format: contiguous, or channels_last for images and volumes")
      ->type_name("NAME")
      ->capture_default_str();
}

void TrainFlags::add_checkpoint_flags(CLI::App& command) {
  command.option_defaults()->group("Checkpoints");
  command
      .add_option(
          "--checkpoint", options.checkpoint.folder,
          "Write a checkpoint to DIR at the end, on interruption, on SIGUSR1, and when the disk for pages fails")
      ->type_name("DIR")
      ->default_str("none");
  add_number(command, "--checkpoint-every", options.checkpoint.every, "Also write a checkpoint every N steps; 0: never")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--resume", options.checkpoint.resume,
                   "Resume from the checkpoint in --checkpoint, up to --steps in all");
}

void TrainFlags::resolve_optimizer() {
  options.optimizer.kind = !optimizer.empty()     ? parse_optimizer(optimizer)
                           : options.kfac.enabled ? OptimizerKind::sgd
                                                  : OptimizerKind::adam;
  const bool preconditioned = options.kfac.enabled && options.optimizer.kind == OptimizerKind::sgd;
  options.optimizer.lr =
      lr.value_or(preconditioned ? model_info(options.model.name).kfac_lr : default_lr(options.optimizer.kind));
  resolve_rest();
  if (momentum && options.optimizer.kind != OptimizerKind::sgd)
    throw BadRequest(str("--momentum is sgd's; the optimizer is ", name(options.optimizer.kind)));
  if (momentum) options.optimizer.momentum = *momentum;
  options.optimizer.weight_decay = weight_decay.value_or(default_weight_decay(options.optimizer.kind));
  options.optimizer.lr_decay = parse_decays("--lr-decay", lr_decay);
}

void TrainFlags::resolve_rest() {
  OptimizerOptions& main = options.optimizer;
  const bool asked = !rest_optimizer.empty() || rest_lr, of_matrices = is_of_matrices(main.kind);
  const bool preconditioned = options.kfac.enabled && main.kind == OptimizerKind::sgd;
  main.rest.reset();
  if (asked && !options.kfac.enabled && !of_matrices)
    throw BadRequest(
        str("--rest-optimizer and --rest-lr are for the parameters that K-FAC, muon and soap leave alone; ",
            name(main.kind), " serves all of them"));
  if (!asked && !preconditioned && !of_matrices) return;
  RestOptimizer rest{.kind = of_matrices ? OptimizerKind::adamw : OptimizerKind::adam};
  if (!rest_optimizer.empty()) rest.kind = parse_optimizer(rest_optimizer);
  rest.lr = rest_lr.value_or(default_rest_lr(main, rest.kind, options));
  main.rest = rest;
}

}  // namespace spillway::tools
