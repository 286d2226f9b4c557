#include "runtime/pipeline/part_profile.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "core/clock.h"
#include "runtime/passes/autocast.h"

namespace spillway::runtime {
namespace {

constexpr int kRounds = 2;

ValueShape shape_of(const at::Tensor& value) {
  return {value.sizes().vec(), value.scalar_type(), value.suggest_memory_format()};
}

}  // namespace

int64_t ValueShape::bytes() const {
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
}

at::Tensor ValueShape::empty(int64_t samples, c10::Device device) const {
  std::vector<int64_t> all = sizes;
  all.front() = samples;
  return at::empty(all, at::TensorOptions(type).device(device).memory_format(format));
}

std::vector<PartProfile> profile_parts(const Task& task, const Batch& batch, Amp amp, const Now& now) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const std::vector<Part> parts = task.parts();
  const auto objective = task.objective();
  std::vector<PartProfile> all(parts.size(), {.forward_seconds = kNever, .backward_seconds = kNever});
  for (int round = 0; round < kRounds; ++round) {
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<at::Tensor> inputs;
      for (int read : parts[i].reads) inputs.push_back(outputs[read].detach().requires_grad_());
      double start = now();
      at::Tensor output, root;
      {
        const Autocast autocast(amp, batch.input.device().type());
        output = root = parts[i].run(inputs, batch);
        if (i + 1 == parts.size()) root = objective->loss(output, batch);
      }
      all[i].forward_seconds = std::min(all[i].forward_seconds, now() - start);
      all[i].output = shape_of(output);
      outputs.push_back(output.detach());
      start = now();
      root.backward(root.dim() > 0 ? at::ones_like(root) : at::Tensor());
      all[i].backward_seconds = std::min(all[i].backward_seconds, now() - start);
    }
  }
  return all;
}

}  // namespace spillway::runtime
