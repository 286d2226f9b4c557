// spillway bench kfac: the parts of K-FAC by themselves, and a model's training with and without it. Every variant is a
// process of its own. Each takes one step in turn, over one whole cycle of intervals.
#include "kfac/kfac.h"

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "benchmarks/commands/commands.h"
#include "benchmarks/commands/operator_counter.h"
#include "benchmarks/commands/serve.h"
#include "benchmarks/commands/worker.h"
#include "core/bytes.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/training_run.h"
#include "tools/cli/numbers.h"
#include "tools/cli/train_flags.h"
#include "tools/cli/write_json.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using nlohmann::json;

constexpr const char* kFirstOrder = "first-order";
constexpr int64_t kWarmUpRounds =
    3;  // rounds that do not count: without a schedule, then under one made from first times

struct KfacBench {
  TrainFlags flags;
  std::vector<std::string> forms{"auto", "full"};
  int64_t factor_interval = 10, inverse_interval = 100, adapt_damping = 0;
  int repeats = 5;
  bool parts_only = false;
  std::string json_file;
  std::string worker;  // the variant that this process is: kFirstOrder or a form of factors
};

json phases_of(const kfac::Kfac& kfac) {
  const auto [bytes, s, f] = kfac.usage();
  return {{"factor_compute", {s.factor_compute, f.factor_compute}},
          {"decompose", {s.decompose, f.decompose}},
          {"precondition", {s.precondition, f.precondition}}};
}

/// Takes a step. The first one of each kind counts its operators.
RunStep take_step(TrainingRun& run, std::map<std::string, int64_t>& operators) {
  const std::string kind(run.kfac() ? run.kfac()->work().kind : "plain");
  if (operators.contains(kind)) return run.step();
  const OperatorCounter counter;
  RunStep outcome = run.step();
  operators[kind] = counter.all();
  return outcome;
}

int serve_variant(const RunContext& context) {
  TrainingRun run(context, kUnlimitedBytes, 1);
  std::map<std::string, int64_t> operators;  // by kind of step
  return serve(
      [&] {
        const RunStep outcome = take_step(run, operators);
        json answer{{"seconds", outcome.seconds}, {"kind", outcome.kind}};
        if (run.kfac()) answer["phases"] = phases_of(*run.kfac());
        return answer;
      },
      [&] {
        const BytesByCategory peak = run.session().stats().peak_by_category;
        json answer{{"activations", peak[Category::activations]}, {"operators", operators}};
        if (!run.kfac()) return answer;
        const kfac::FactorBytes state = run.kfac()->usage().bytes;
        answer["factors"] = state.factors;
        answer["eigenbases"] = state.eigenbases;
        answer["scales"] = state.scales;
        answer["damping_scale"] = run.kfac()->counters().damping_scale;
        return answer;
      });
}

TrainOptions worker_options(const KfacBench& options, TrainOptions train) {
  train.optimizer.kind = OptimizerKind::sgd;
  train.optimizer.lr = 1e-3;  // keeps the loss finite; the result of learning does not matter
  train.optimizer.momentum = 0.9;
  train.steps = options.inverse_interval + kWarmUpRounds;  // the cases of all are loaded before the first
  train.kfac.enabled = options.worker != kFirstOrder;
  if (!train.kfac.enabled) return train;
  train.kfac.preconditioner.conv_factors = kfac::parse_conv_factors(options.worker);
  train.kfac.preconditioner.factor_interval = options.factor_interval;
  train.kfac.preconditioner.inverse_interval = options.inverse_interval;
  train.kfac.preconditioner.burn_in = 0;
  train.kfac.damping_adaptation = options.adapt_damping;
  return train;
}

std::vector<std::string> worker_arguments(const KfacBench& options, const std::string& variant) {
  std::vector<std::string> arguments{"spillway",
                                     "bench",
                                     "kfac",
                                     "--worker",
                                     variant,
                                     "--factor-interval",
                                     std::to_string(options.factor_interval),
                                     "--inverse-interval",
                                     std::to_string(options.inverse_interval),
                                     "--adapt-damping",
                                     std::to_string(options.adapt_damping)};
  const std::vector<std::string> model = model_arguments(options.flags.options);
  arguments.insert(arguments.end(), model.begin(), model.end());
  return arguments;
}

struct KfacVariant {
  std::string name;
  std::unique_ptr<Worker> worker;
  std::vector<double> seconds{};
  json warm{}, latest{}, last{};
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Runs one step of each variant in turn, over a whole cycle.
void run_cycle(std::vector<KfacVariant>& variants, int64_t steps) {
  for (int64_t round = 0; round < steps + kWarmUpRounds; ++round) {
    for (KfacVariant& v : variants) {
      v.latest = v.worker->step();
      if (round + 1 == kWarmUpRounds) v.warm = v.latest;
      if (round >= kWarmUpRounds) v.seconds.push_back(v.latest["seconds"]);
    }
    std::fputs(str("\rround ", round + 1, " of ", steps + kWarmUpRounds).c_str(), stderr);
  }
  std::fprintf(stderr, "\n");
  for (KfacVariant& v : variants) v.last = v.worker->finish();
}

/// Adds a row for each phase of a variant; the seconds are those of a mean step.
void add_phase_rows(const KfacVariant& v, json& rows) {
  const auto steps = static_cast<double>(v.seconds.size());
  for (const auto& [phase, now] : v.latest["phases"].items()) {
    const json& before = v.warm["phases"][phase];
    const double seconds = now[0].get<double>() - before[0].get<double>();
    const double gflops = seconds > 0 ? (now[1].get<double>() - before[1].get<double>()) / seconds / 1e9 : 0;
    const int64_t bytes = phase == "factor_compute" ? v.last["factors"].get<int64_t>()
                          : phase == "decompose"    ? v.last["eigenbases"].get<int64_t>()
                                                    : 0;
    std::printf("  %-10s %-16s %10.2f ms a step %8.1f GFLOP/s %10s\n", v.name.c_str(), phase.c_str(),
                seconds / steps * 1e3, gflops, format_bytes(bytes).c_str());
    rows.push_back(
        {{"phase", str(v.name, " ", phase)}, {"seconds", seconds / steps}, {"gflops", gflops}, {"bytes", bytes}});
  }
}

/// Returns the operators of a variant's steps by kind, without those of a step without K-FAC. A CPU alone counts them.
json operators_of(const KfacVariant& v, const KfacVariant& first_order) {
  const auto plain = first_order.last["operators"]["plain"].get<int64_t>();
  json by_kind = json::object();
  for (const auto& [kind, count] : v.last["operators"].items()) {
    by_kind[kind] = count.get<int64_t>() - plain;
    std::printf("  %-10s %-24s %6lld operators more than first order's %lld\n", v.name.c_str(), kind.c_str(),
                static_cast<long long>(by_kind[kind].get<int64_t>()), static_cast<long long>(plain));
  }
  return by_kind;
}

json report(const TrainOptions& train, const KfacBench& options, const std::vector<KfacVariant>& variants, json rows) {
  const double first = mean(variants[0].seconds);
  const auto activations = variants[0].last["activations"].get<int64_t>();
  json forms = json::array();
  std::printf("%s, factors every %lld steps, decompositions every %lld; first order %.3f s a step, %s of activations\n",
              train.model.name.c_str(), static_cast<long long>(options.factor_interval),
              static_cast<long long>(options.inverse_interval), first, format_bytes(activations).c_str());
  for (size_t i = 1; i < variants.size(); ++i) {
    const KfacVariant& v = variants[i];
    const int64_t state =
        v.last["factors"].get<int64_t>() + v.last["eigenbases"].get<int64_t>() + v.last["scales"].get<int64_t>();
    const double share = static_cast<double>(state) / static_cast<double>(activations);
    std::printf("%-12s %.3f s a step, %.3f of first order; state %s, %.1f %% of activations\n", v.name.c_str(),
                mean(v.seconds), mean(v.seconds) / first, format_bytes(state).c_str(), 100 * share);
    add_phase_rows(v, rows);
    forms.push_back({{"conv_factors", v.name},
                     {"step_seconds", mean(v.seconds)},
                     {"ratio_to_first_order", mean(v.seconds) / first},
                     {"state_bytes", state},
                     {"state_per_activations", share},
                     {"operators", operators_of(v, variants[0])},
                     {"damping_scale", v.last["damping_scale"]}});
  }
  return {{"model", train.model.name},
          {"rows", rows},
          {"first_order_step_seconds", first},
          {"kfac_step_seconds", forms.empty() ? json(nullptr) : forms[0]["step_seconds"]},
          {"activation_bytes", activations},
          {"forms", forms}};
}

int bench_kfac(KfacBench& options) {
  TrainOptions train = options.flags.resolve(1);
  open_device(train.memory.device);  // before anything else of LibTorch's, because that looks for GPUs only once
  if (!options.worker.empty()) {
    train = worker_options(options, train);
    train.validate();
    return serve_variant(make_context(train, {}));
  }
  for (const std::string& form : options.forms) (void)kfac::parse_conv_factors(form);
  json result{{"model", nullptr}, {"rows", bench_kfac_parts(train.memory.device, options.repeats)}};
  if (!options.parts_only) {
    std::vector<KfacVariant> variants;
    std::vector<std::string> names{kFirstOrder};
    names.insert(names.end(), options.forms.begin(), options.forms.end());
    for (const std::string& name : names) {
      variants.push_back({.name = name, .worker = std::make_unique<Worker>(name, worker_arguments(options, name))});
      if (!options_device(train).is_cpu()) variants.back().worker->wait_until_ready();
    }
    run_cycle(variants, options.inverse_interval);
    result = report(train, options, variants, std::move(result["rows"]));
  }
  if (!options.json_file.empty()) write_json(result, options.json_file);
  return kOk;
}

void add_measurement_flags(CLI::App& command, KfacBench& options) {
  command.option_defaults()->group("Measurement");
  const auto number = [&](const char* flag, auto& value, const char* meaning, int64_t least) {
    add_number(command, flag, value, meaning)->type_name("N")->capture_default_str()->check(at_least(least));
  };
  command
      .add_option("--forms", options.forms,
                  "Factors of convolutions: auto, full, separable or block, several with commas")
      ->type_name("NAMES")
      ->delimiter(',')
      ->capture_default_str();
  number("--factor-interval", options.factor_interval, "Update factors every N steps", 1);
  number("--inverse-interval", options.inverse_interval,
         "Decompose factors every N steps, and measure N steps per variant", 1);
  number("--adapt-damping", options.adapt_damping, "Adapt the damping every N steps, 0 for never", 0);
  number("--repeats", options.repeats, "Measured runs of each part by itself", 1);
  command.add_flag("--parts-only", options.parts_only, "Measure only the parts by themselves, without training");
  command.add_option("--json", options.json_file, "File for the results")->type_name("FILE")->default_str("none");
  command.add_option("--worker", options.worker)->group("");
}

}  // namespace

Run add_bench_kfac(CLI::App& bench) {
  auto options = std::make_shared<KfacBench>();
  CLI::App* command =
      bench.add_subcommand("kfac", "Measures the cost of K-FAC: its parts, and steps with and without it");
  options->flags.add_model_flags(*command);
  add_measurement_flags(*command, *options);
  command->footer("Example: spillway bench kfac --model unet3d --edge 64 --filters 8 --json kfac.json");
  return [options] { return bench_kfac(*options); };
}

}  // namespace spillway::tools
