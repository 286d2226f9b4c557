#include "runtime/models/autocast.h"

#include <ATen/autocast_mode.h>

#include "core/error.h"

namespace spillway {

void check_amp(std::string_view amp) {
  if (amp == "off" || amp == "bf16" || amp == "fp16") return;
  throw BadRequest(str("amp is '", amp, "'; allowed is fp16, bf16 or off"));
}

Autocast::Autocast(std::string_view amp, c10::DeviceType device)
    : device_(device),
      was_enabled_((check_amp(amp), at::autocast::is_autocast_enabled(device))),
      former_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, amp != "off");
  at::autocast::set_autocast_dtype(device_, amp == "fp16" ? at::kHalf : at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, former_type_);
}

}  // namespace spillway
