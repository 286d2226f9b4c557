// The flags of the optimizer and of checkpoints.
#include "core/error.h"
#include "runtime/models/model_info.h"
#include "tools/cli/train_flags.h"

namespace spillway::tools {
namespace {

double default_lr(const std::string& optimizer) {
  if (optimizer == "sgd") return 0.1;
  if (optimizer == "lamb") return 5e-3;
  return 5e-4;
}

double default_weight_decay(const std::string& optimizer) {
  return optimizer == "adamw" || optimizer == "lamb" ? 0.01 : 0;
}

}  // namespace

void TrainFlags::add_optimizer_flags(CLI::App& command) {
  command.add_option("--optimizer", optimizer, "sgd, adam, adamw or lamb; default adam, with --kfac sgd");
  command.add_option("--lr", lr,
                     "Learning rate; default 5e-4 for adam and adamw, 5e-3 for lamb, 0.1 for sgd, but 1 with "
                     "--kfac for unet3d, whose K-FAC steps --kl-clip alone bounds");
  command.add_option("--momentum", momentum, "Of sgd; default 0.9");
  command.add_flag("--nesterov", options.nesterov, "Of sgd: look ahead along the momentum");
  command.add_option("--weight-decay", weight_decay,
                     "L2 penalty (sgd, adam; default 0), or what weights shrink by, as a share of lr (adamw, lamb; "
                     "default 0.01)");
  command.add_option("--warmup", options.warmup, "Steps over which the learning rate rises to its value")
      ->capture_default_str();
  command.add_option("--lr-decay", lr_decay,
                     "FACTOR@EPOCH,…: from the start of that epoch on the learning rate is multiplied by the factor");
  command.add_option("--clip-norm", options.clip_norm, "Longest gradient, 2-norm over all parameters; 0: any length")
      ->capture_default_str();
  command.add_option("--accumulate", options.accumulate, "Micro-batches per step, whose gradients are averaged")
      ->capture_default_str();
  command.add_option("--amp", options.amp, "bf16 or fp16: forward and loss under autocast; or off")
      ->capture_default_str();
  command
      .add_option("--loss-scale", options.loss_scaling.initial,
                  "With fp16: what the loss is multiplied by at first; halved when gradients overflow")
      ->capture_default_str();
  command
      .add_option("--loss-scale-interval", options.loss_scaling.growth_interval,
                  "With fp16: steps without an overflow after which the loss scale doubles")
      ->capture_default_str();
  command.add_option("--memory-format", options.memory_format, "contiguous, or channels_last for images and volumes")
      ->capture_default_str();
}

void TrainFlags::add_checkpoint_flags(CLI::App& command) {
  command.add_option("--checkpoint", options.checkpoint,
                     "Folder for a checkpoint, written at the end, when interrupted, and after the step in which "
                     "SIGUSR1 arrives");
  command.add_option("--checkpoint-every", options.checkpoint_every, "and every so many steps; 0: not meanwhile")
      ->capture_default_str();
  command.add_flag("--resume", options.resume, "Go on from the checkpoint in that folder, up to --steps in all");
}

void TrainFlags::resolve_optimizer() {
  options.optimizer = !optimizer.empty() ? optimizer : options.use_kfac ? "sgd" : "adam";
  const bool preconditioned = options.use_kfac && options.optimizer == "sgd";
  options.lr = lr.value_or(preconditioned ? model_info(options.model).kfac_lr : default_lr(options.optimizer));
  if (momentum && options.optimizer != "sgd")
    throw BadRequest(str("--momentum is sgd's; the optimizer is ", options.optimizer));
  if (momentum) options.momentum = *momentum;
  options.weight_decay = weight_decay.value_or(default_weight_decay(options.optimizer));
  options.lr_decay = parse_decays("--lr-decay", lr_decay);
}

}  // namespace spillway::tools
