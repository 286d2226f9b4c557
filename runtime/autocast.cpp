#include "runtime/autocast.h"

#include <ATen/autocast_mode.h>

#include "core/error.h"

namespace spillway {

void check_amp(std::string_view amp) {
  if (amp == "off" || amp == "bf16") return;
  if (amp == "fp16") throw BadRequest("amp is 'fp16', which needs a GPU; on the CPU allowed is bf16 or off");
  throw BadRequest(str("amp is '", amp, "'; allowed is bf16 or off"));
}

Autocast::Autocast(std::string_view amp)
    : was_enabled_((check_amp(amp), at::autocast::is_autocast_enabled(at::kCPU))),
      former_type_(at::autocast::get_autocast_dtype(at::kCPU)) {
  at::autocast::set_autocast_enabled(at::kCPU, amp == "bf16");
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, former_type_);
}

}  // namespace spillway
