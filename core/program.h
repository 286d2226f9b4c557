/// The version of the programs, and the exit codes by which they, and so ranks, report how they ended.
#pragma once

namespace spillway {

/// The version that programs print and reports carry. It is CMake's project version, which a test checks.
inline constexpr const char* kVersion = "0.1.0";

/// The exit codes of the programs.
enum ExitCode : int { kOk = 0, kFailure = 1, kBadRequest = 2, kInfeasible = 3, kCommunication = 4, kInterrupted = 130 };

}  // namespace spillway
