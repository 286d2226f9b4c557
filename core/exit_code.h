/// The exit codes by which programs, and so ranks, report how they ended.
#pragma once

namespace spillway {

/// The exit codes of the programs.
enum ExitCode : int { kOk = 0, kFailure = 1, kBadRequest = 2, kInfeasible = 3, kCommunication = 4, kInterrupted = 130 };

}  // namespace spillway
