#pragma once

namespace spillway {

/// The version that programs print and reports carry. It is CMake's project version, which a test checks.
inline constexpr const char* kVersion = "0.1.0";

}  // namespace spillway
