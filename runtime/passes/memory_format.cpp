#include "runtime/passes/memory_format.h"

namespace spillway::runtime {

at::MemoryFormat memory_format(Layout layout, int64_t dimensions) {
  if (layout == Layout::channels_last && dimensions == 4) return at::MemoryFormat::ChannelsLast;
  if (layout == Layout::channels_last && dimensions == 5) return at::MemoryFormat::ChannelsLast3d;
  return at::MemoryFormat::Contiguous;
}

void to_memory_format(torch::nn::Module& module, Layout layout) {
  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters())
    parameter.set_data(parameter.detach().contiguous(memory_format(layout, parameter.dim())));
}

}  // namespace spillway::runtime
