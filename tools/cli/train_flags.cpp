#include "tools/cli/train_flags.h"

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::tools {
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
  kfac.add(command, options);
  command.add_flag("--deterministic", options.deterministic, "Deterministic algorithms only");
  command
      .add_option("--validate-every", options.validate_every,
                  "Steps between measurements on the held-out cases; 0: "
                  "five in a run")
      ->capture_default_str();
  add_checkpoint_flags(command);
  add_gradient_flags(command);
}

void TrainFlags::add_gradient_flags(CLI::App& command) {
  command.add_flag("--no-overlap-gradients", no_overlap_gradients,
                   "Send gradients after backward, and not while it goes on");
  command
      .add_option("--gradient-bucket", gradient_bucket,
                  "Gradients travel together up to this size, or auto: as the links' rates suggest")
      ->capture_default_str();
  command
      .add_option("--gradient-buffer", gradient_buffer,
                  "Most memory for gradients on their way, or auto: for all of them, with a budget 16MiB")
      ->capture_default_str();
}

TrainOptions TrainFlags::resolve(int world) {
  if (device != "auto" && device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
    throw BadRequest(str("--device is '", device, "'; allowed is cpu, cuda, cuda:N or auto"));
  options.device = device == "auto" ? "cpu" : device;
  resolve_model();
  options.budget = BudgetRequest::parse(budget);
  options.host_budget = BudgetRequest::parse(host_budget);
  resolve_optimizer();
  options.overlap_gradients = !no_overlap_gradients;
  options.gradient_bucket_bytes = gradient_bucket == "auto" ? 0 : parse_bytes(gradient_bucket);
  options.gradient_buffer_bytes = gradient_buffer == "auto" ? 0 : parse_bytes(gradient_buffer);
  kfac.resolve(options, world);
  options.validate();
  return options = with_model_defaults(options);
}

}  // namespace spillway::tools
