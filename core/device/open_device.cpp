#include "core/device/open_device.h"

#include <charconv>

#include "core/device/cpu_device.h"
#include "core/device/cuda_device.h"
#include "core/error.h"

namespace spillway {

Device& open_device(std::string_view name) {
  if (name == "cpu") return CpuDevice::instance();
  if (name == "cuda") return CudaDevice::open(0);
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) {
    int index = -1;
    auto [end, error] = std::from_chars(name.data() + kCuda.size(), name.data() + name.size(), index);
    if (error == std::errc() && end == name.data() + name.size() && index >= 0 && index < kMaxGpus)
      return CudaDevice::open(index);
  }
  throw BadRequest(str("the device is '", name, "'; allowed is cpu, cuda or cuda:N with N from 0 to ", kMaxGpus - 1));
}

}  // namespace spillway
