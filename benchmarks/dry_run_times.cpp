// dry_run_times: the time of a training step as a dry run predicts it, beside the time that it takes.
//   build/bin/dry_run_times unet3d synthetic:64 8 1 kfac
//   mpirun -np 2 build/bin/dry_run_times resnet50 synthetic:64 32
//   build/bin/dry_run_times bert-base synthetic:64 0 4 plain 4 256
// Arguments: model, data, filters and batch (0: the model's default), kfac to precondition or plain, layers and width
// (0: the model's default). Of several ranks, rank 0 tells.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/clock.h"
#include "ddl/comm/mpi.h"
#include "ddl/comm/simulated_world.h"
#include "ddl/torch/comm.h"
#include "runtime/dry_runs/machine_times.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/step_trace.h"
#include "swap/shapes/measured_times.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway {
namespace {
using namespace runtime;
using namespace swap;

struct Total {
  double real = 0, dry = 0, real_gap = 0, dry_gap = 0;
  int64_t calls = 0;
};

std::vector<StepTrace> traces_of(const RunContext& context, int steps) {
  TrainingRun run(context, kUnlimitedBytes, 1);
  for (int i = 0; i < steps; ++i) run.step();
  std::vector<StepTrace> all;
  for (const StepTrace* trace : run.session().traces()) all.push_back(*trace);
  return all;
}

double gap_seconds(const StepTrace& trace) {
  double sum = trace.tail_seconds;
  for (const OperatorRecord& op : trace.operators) sum += op.host_seconds;
  return sum;
}

void compare(const StepTrace& real, const StepTrace& dry) {
  std::printf("%s: %zu operators, real %.1f ms, dry %.1f ms, %.3f of real; between operators %.1f and %.1f ms\n",
              real.kind.c_str(), real.operators.size(), real.compute_seconds() * 1e3, dry.compute_seconds() * 1e3,
              dry.compute_seconds() / real.compute_seconds(), gap_seconds(real) * 1e3, gap_seconds(dry) * 1e3);
  std::map<std::string, Total> totals;
  for (size_t i = 0; i < std::min(real.operators.size(), dry.operators.size()); ++i) {
    Total& total = totals[std::string(real.operators[i].name)];
    total.real += real.operators[i].seconds;
    total.dry += dry.operators[i].seconds;
    total.real_gap += real.operators[i].host_seconds;
    total.dry_gap += dry.operators[i].host_seconds;
    ++total.calls;
  }
  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second.real > b.second.real; });
  if (sorted.size() > 12) sorted.resize(12);
  for (const auto& [name, total] : sorted)
    std::printf("  %-44s %5ld calls  real %8.2f ms  dry %8.2f ms, before them %6.2f and %6.2f ms\n", name.c_str(),
                static_cast<long>(total.calls), total.real * 1e3, total.dry * 1e3, total.real_gap * 1e3,
                total.dry_gap * 1e3);
}

int run(int argc, char** argv) {
  if (argc < 3)
    return std::fprintf(stderr, "usage: dry_run_times MODEL DATA [FILTERS [BATCH [kfac|plain [LAYERS [WIDTH]]]]]\n"), 2;
  TrainOptions options;
  options.model.name = argv[1];
  options.data.source = argv[2];
  if (argc > 3 && std::atoi(argv[3]) > 0) options.model.filters = std::atoi(argv[3]);
  if (argc > 4) options.data.batch = std::atoi(argv[4]);
  options.kfac.enabled = argc > 5 && std::string(argv[5]) == "kfac";
  if (argc > 6) options.model.layers = std::atoi(argv[6]);
  if (argc > 7) options.model.hidden = std::atoi(argv[7]);
  options.optimizer.kind = options.kfac.enabled ? OptimizerKind::sgd : OptimizerKind::adam;
  std::optional<ddl::MpiRuntime> mpi;
  if (ddl::launched_by_mpi()) mpi.emplace();
  const ddl::Comm comm = mpi ? ddl::make_comm(mpi->world()) : ddl::Comm();
  const RunContext context = make_context(options, comm);
  const auto times = std::make_shared<MeasuredTimes>();
  RunContext on_paper = context;
  on_paper.kernels = make_shape_kernels(times);
  if (comm)
    on_paper.comm = ddl::make_comm(ddl::simulated_communicator(ddl::rank_of(comm), comm->communicator->levels()));
  auto start = Clock::now();
  (void)traces_of(on_paper, 8);
  std::printf("dry run %.2f s, %ld calls to measure", seconds_since(start), static_cast<long>(times->missing()));
  start = Clock::now();
  times->measure();
  times->set_gaps(measure_host_gaps());
  std::printf(", measured in %.2f s; between operators %.1f µs, %.1f in backward\n", seconds_since(start),
              times->gaps().forward * 1e6, times->gaps().backward * 1e6);
  start = Clock::now();
  const auto dry = traces_of(on_paper, 8);
  std::printf("dry run again %.2f s\n", seconds_since(start));
  const auto real = traces_of(context, 8);
  if (ddl::rank_of(comm) != 0) return 0;
  for (size_t t = 0; t < std::min(dry.size(), real.size()); ++t) compare(real[t], dry[t]);
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  return spillway::run(argc, argv);
}
