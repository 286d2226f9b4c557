#pragma once

namespace spillway {

/// The version that programs print and reports carry; CMake's project version, checked by a test.
inline constexpr const char* kVersion = "0.1.0";

}  // namespace spillway
