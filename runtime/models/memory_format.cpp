#include "runtime/models/memory_format.h"

#include "core/error.h"

namespace spillway {

Layout parse_memory_format(std::string_view name) {
  if (name == "contiguous") return Layout::contiguous;
  if (name == "channels_last") return Layout::channels_last;
  throw BadRequest(str("memory format is '", name, "'; allowed is contiguous or channels_last"));
}

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

}  // namespace spillway
