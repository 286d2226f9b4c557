#include "runtime/passes/autocast.h"

#include <ATen/autocast_mode.h>

namespace spillway::runtime {

Autocast::Autocast(Amp amp, c10::DeviceType device)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      former_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, amp != Amp::off);
  at::autocast::set_autocast_dtype(device_, amp == Amp::fp16 ? at::kHalf : at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, former_type_);
}

}  // namespace spillway::runtime
