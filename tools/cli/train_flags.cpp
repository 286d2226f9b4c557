#include "tools/cli/train_flags.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"
#include "tools/cli/numbers.h"

namespace spillway::tools {

void TrainFlags::add_tier_flags(CLI::App& command) {
  command.option_defaults()->group("Device and memory");
  command
      .add_option("--host-budget", host_budget,
                  "Limit of host memory per rank for evicted pages: a size, a percentage of the peak, or none")
      ->type_name("BUDGET")
      ->capture_default_str();
  command.add_option("--disk", options.memory.disk, "Folder for pages that do not fit the host budget")
      ->type_name("DIR")
      ->default_str("none");
}

void TrainFlags::add_training_flags(CLI::App& command) {
  command.option_defaults()->group("Device and memory");
  command
      .add_option(
          "--budget", budget,
          "Limit of device memory per rank: a size, a percentage of the unconstrained peak such as 50%, or none")
      ->type_name("BUDGET")
      ->capture_default_str();
  add_tier_flags(command);
  add_run_flags(command);
  add_optimizer_flags(command);
  add_precision_flags(command);
  kfac.add(command, options);
  add_checkpoint_flags(command);
  add_gradient_flags(command);
}

void TrainFlags::add_run_flags(CLI::App& command) {
  command.option_defaults()->group("Run");
  auto* steps = add_number(command, "--steps", options.steps, "Number of training steps; 1 or more");
  steps->type_name("N")->capture_default_str();
  add_number(command, "--epochs", options.epochs,
             "Number of passes over the training cases, instead of --steps; 1 or more")
      ->type_name("N")
      ->excludes(steps);
  add_number(command, "--validate-every", options.validate_every,
             "Validate on the held-out cases every N steps; 0: five times in a run")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--deterministic", options.deterministic, "Use deterministic algorithms only");
}

void TrainFlags::add_gradient_flags(CLI::App& command) {
  command.option_defaults()->group("Ranks");
  command.add_flag("--no-overlap-gradients", no_overlap_gradients,
                   "Send gradients after backward instead of during it");
  command
      .add_option("--gradient-bucket", gradient_bucket,
                  "Maximum size of a gradient bucket, 1KiB to 1GiB; auto: by the links, with a budget by the buffer")
      ->type_name("SIZE")
      ->capture_default_str();
  command
      .add_option("--gradient-buffer", gradient_buffer,
                  "Memory limit for gradients in flight; auto: room for all of them, with a budget 16MiB or as planned")
      ->type_name("SIZE")
      ->capture_default_str();
}

void TrainFlags::add_pipeline_flags(CLI::App& command) {
  command.option_defaults()->group("Pipeline");
  add_number(command, "--pipeline", options.pipeline.ranks,
             "Cut the model into stages over N ranks, with --accumulate micro-batches per step; 1: no pipeline")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--schedule", schedule,
                  str("Pipeline schedule: ", schedule_names(), "; all but chimera give the same bits"))
      ->type_name("NAME")
      ->capture_default_str();
  add_number(command, "--chunks", options.pipeline.chunks, "Stages per rank with --schedule interleaved; 1 or more")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--refresh", refresh, str("Order in which a pipeline refreshes K-FAC's layers: ", refresh_names()))
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--kfac-work", kfac_work,
                  str("When a pipeline's ranks do that work: ", kfac_work_names(), "; the same bits"))
      ->type_name("NAME")
      ->capture_default_str();
  add_number(command, "--cut", options.pipeline.cut,
             "Number of the model's parts in each stage, with commas; a part is a layer, block or level")
      ->type_name("N,N,…")
      ->default_str("by measured seconds")
      ->delimiter(',');
  command.add_flag(
      "--recompute", options.pipeline.recompute,
      "Recompute activations: stages keep only their inputs and run forward again before backward; the same bits");
}

TrainOptions TrainFlags::resolve(int world) {
  if (device != "auto" && device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
    throw BadRequest(str("--device is '", device, "'; allowed is cpu, cuda, cuda:N or auto"));
  options.memory.device = device == "auto" ? "cpu" : device;
  resolve_model();
  options.memory.budget = BudgetRequest::parse(budget);
  options.memory.host_budget = BudgetRequest::parse(host_budget);
  options.precision.amp = parse_amp(amp);
  options.pipeline.schedule = parse_schedule(schedule);
  options.pipeline.refresh = parse_refresh(refresh);
  options.pipeline.kfac_work = parse_kfac_work(kfac_work);
  resolve_optimizer();
  options.gradients.overlap = !no_overlap_gradients;
  options.gradients.bucket_bytes = gradient_bucket == "auto" ? 0 : parse_bytes(gradient_bucket);
  options.gradients.buffer_bytes = gradient_buffer == "auto" ? 0 : parse_bytes(gradient_buffer);
  const int64_t copies = options.pipeline.ranks > 0 ? world / options.pipeline.ranks : world;
  kfac.resolve(options, static_cast<int>(std::max<int64_t>(1, copies * options.pipeline.holders())));
  options.validate();
  return options = with_model_defaults(options);
}

}  // namespace spillway::tools
