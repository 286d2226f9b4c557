// The time that the gate adds to an operator: plain LibTorch, between two Sessions, a Session outside a step, and
// inside a traced step.
//     build/bin/gate_overhead [cuda] [Google Benchmark's flags]
// With `cuda` the operator's kernel runs on a GPU, and the time is the host's: until it is launched.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <optional>
#include <string>

#include "core/device/cuda_device.h"
#include "swap/session.h"

namespace {

enum Mode : int64_t { kPlain, kBetween, kGated, kTraced };
constexpr const char* kNames[] = {"plain", "between Sessions", "session", "session, traced step"};

std::string place = "cpu";

void small_operator(benchmark::State& state) {
  at::NoGradGuard no_grad;
  std::optional<spillway::Session> session;
  if (state.range(0) != kPlain) session.emplace(spillway::SessionOptions{.device = place});
  if (state.range(0) == kBetween) session.reset();
  at::Tensor x = at::ones({state.range(1)}, at::TensorOptions(at::Device(place)));
  int64_t done = 0;
  std::optional<spillway::Session::Step> step;
  for (auto _ : state) {
    // A trace grows with its step, so steps have a thousand operators, as in training.
    if (state.range(0) == kTraced && done++ % 1000 == 0) {
      step.reset();
      step.emplace(session->step());
    }
    x.add_(1);
  }
  step.reset();
  state.SetLabel(kNames[state.range(0)]);
}

}  // namespace

// Tensors of 16 elements are not paged; tensors of 2048 (8 KiB) are.
BENCHMARK(small_operator)->ArgsProduct({{kPlain, kBetween, kGated, kTraced}, {16, 2048}});

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 1) place = argv[1];
  if (place != "cpu") spillway::load_libtorch_cuda();
  benchmark::RunSpecifiedBenchmarks();
}
