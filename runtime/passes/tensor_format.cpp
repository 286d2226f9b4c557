#include "runtime/passes/tensor_format.h"

#include "core/value_names.h"

namespace spillway {
namespace {

constexpr auto kAmps = value_names<Amp>({{Amp::fp16, "fp16"}, {Amp::bf16, "bf16"}, {Amp::off, "off"}});
constexpr auto kLayouts =
    value_names<Layout>({{Layout::contiguous, "contiguous"}, {Layout::channels_last, "channels_last"}});

}  // namespace

Amp parse_amp(std::string_view name) {
  return kAmps.parse("amp", name);
}
std::string_view name(Amp amp) {
  return kAmps.name(amp);
}
Layout parse_layout(std::string_view name) {
  return kLayouts.parse("memory format", name);
}
std::string_view name(Layout layout) {
  return kLayouts.name(layout);
}

}  // namespace spillway
