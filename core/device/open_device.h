/// The opening of devices by name.
#pragma once
#include <string_view>

namespace spillway {

class Device;

/// Returns the device called `cpu`, `cuda` or `cuda:N`, which counts from now on. Throws BadRequest for other names.
/// Throws DeviceError naming the missing part where the device cannot be had.
Device& open_device(std::string_view name);

}  // namespace spillway
