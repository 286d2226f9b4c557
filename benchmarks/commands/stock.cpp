#include "benchmarks/commands/stock.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "benchmarks/commands/saved_on_host.h"
#include "benchmarks/commands/serve.h"
#include "core/clock.h"
#include "core/device/cuda_device.h"
#include "core/device/open_device.h"
#include "runtime/io/weights_sha256.h"

namespace spillway::tools {
using namespace runtime;
namespace {

using nlohmann::json;

/// Returns the peak that LibTorch's allocator counts; it counts on GPUs only.
int64_t peak_bytes(const c10::Device& device) {
  if (device.is_cpu()) return 0;
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

TaskOptions stock_options(const RunContext& context, std::string_view way) {
  TaskOptions options = task_options(context.options, *context.data);
  options.unet3d.recompute = way == kRecomputed;
  return options;
}

std::optional<HostCopies> host_copies(std::string_view way) {
  if (way == kSavedOnHost) return HostCopies::blocking;
  if (way == kSavedWithoutBlocking) return HostCopies::non_blocking;
  if (way == kSavedOneAhead) return HostCopies::one_ahead;
  return std::nullopt;
}

}  // namespace

bool is_stock(std::string_view worker) {
  return worker == kStock || std::ranges::find(kPeers, worker) != kPeers.end();
}

void open_device_for(const TrainOptions& options, std::string_view worker) {
  if (!is_stock(worker))
    open_device(options.memory.device);
  else if (options_device(options).is_cuda())
    load_libtorch_cuda();
}

bool can_train(const TrainOptions& options, std::string_view way) {
  if (way == kSavedWithoutBlocking || way == kSavedOneAhead) return options_device(options).is_cuda();
  return way != kRecomputed || options.model.name == "unet3d";
}

int serve_stock(const RunContext& context, std::string_view way) {
  const TrainOptions& options = context.options;
  const c10::Device device = options_device(options);
  at::manual_seed(options.seed);
  auto task = make_task(options.model.name, stock_options(context, way));
  task->module().to(device);
  torch::optim::Adam adam(task->module().parameters(), torch::optim::AdamOptions(options.optimizer.lr));
  at::manual_seed(options.seed * 1'000'003 + 1);
  Sampler sampler(context.split.train, options.data.batch, 0, 1, options.seed);
  std::optional<SavedOnHost> saved_on_host;
  if (const auto copies = host_copies(way)) saved_on_host.emplace(*copies);
  return serve(
      [&] {
        const auto start = Clock::now();
        Batch cases = gather(*context.data, sampler.next());
        Batch batch{cases.input.clone().to(device), cases.target.clone().to(device)};
        at::Tensor loss = task->loss(batch);
        loss.backward();
        batch = {};
        adam.step();
        adam.zero_grad();
        const double value = loss.item<double>();
        return json{{"seconds", seconds_since(start)}, {"loss", value}};
      },
      [&] {
        return json{{"sha256", weights_sha256(task->module())}, {"peak_bytes", peak_bytes(device)}};
      });
}

}  // namespace spillway::tools
