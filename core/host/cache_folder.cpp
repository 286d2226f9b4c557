#include "core/host/cache_folder.h"

#include <cstdlib>

namespace spillway {
namespace {

std::filesystem::path path_in(const char* variable) {
  const char* text = std::getenv(variable);
  return std::filesystem::path(text ? text : "");
}

/// Returns the folder of all that is remembered; empty where the environment names none.
std::filesystem::path cache_folder() {
  if (auto cache = path_in("SPILLWAY_CACHE"); !cache.empty()) return cache;
  if (const auto cache = path_in("XDG_CACHE_HOME"); !cache.empty()) return cache / "spillway";
  if (const auto home = path_in("HOME"); !home.empty()) return home / ".cache" / "spillway";
  return {};
}

std::filesystem::path within_cache(const char* name) {
  const std::filesystem::path cache = cache_folder();
  return cache.empty() ? cache : cache / name;
}

}  // namespace

std::filesystem::path link_cache_folder() {
  return within_cache("links");
}

std::filesystem::path kernel_cache_folder() {
  return within_cache("kernels");
}

}  // namespace spillway
