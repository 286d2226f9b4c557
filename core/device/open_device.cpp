#include "core/device/open_device.h"

#include "core/device/cpu_device.h"
#include "core/device/cuda_device.h"
#include "core/error.h"
#include "core/parse_number.h"

namespace spillway {

Device& open_device(std::string_view name) {
  if (name == "cpu") return CpuDevice::instance();
  if (name == "cuda") return CudaDevice::open(0);
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) {
    const int index = parse_number<int>(name.substr(kCuda.size())).value_or(-1);
    if (index >= 0 && index < kMaxGpus) return CudaDevice::open(index);
  }
  throw BadRequest(str("the device is '", name, "'; allowed is cpu, cuda or cuda:N with N from 0 to ", kMaxGpus - 1));
}

}  // namespace spillway
