/// The folders of what is remembered between runs.
#pragma once
#include <filesystem>

namespace spillway {

/// Returns the folder where the costs of links are remembered: `links/` in SPILLWAY_CACHE, else in spillway/ of
/// XDG_CACHE_HOME or of ~/.cache. Empty where none of these is set.
std::filesystem::path link_cache_folder();

/// Returns the folder where the times of kernels are remembered: `kernels/` beside that of links.
std::filesystem::path kernel_cache_folder();

}  // namespace spillway
