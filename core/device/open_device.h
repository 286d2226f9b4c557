/// Devices by their names.
#pragma once
#include <string_view>

namespace spillway {

class Device;

/// The device called `cpu`, `cuda` or `cuda:N`, counting from now on. Throws BadRequest for other names, and
/// DeviceError naming what is missing where the device cannot be had.
Device& open_device(std::string_view name);

}  // namespace spillway
