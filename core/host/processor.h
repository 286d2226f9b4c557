/// The processor's model.
#pragma once
#include <filesystem>
#include <string>

namespace spillway {

/// Returns the processor's model as the kernel names it in `root`/proc/cpuinfo; empty where the kernel names none.
std::string processor_model(const std::filesystem::path& root = "/");

}  // namespace spillway
