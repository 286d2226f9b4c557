/// Helpers that the targets share.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/error.h"
#include "tests/support/disk.h"

namespace spillway::fuzz {
using namespace swap;

/// Throws an error that no target catches, unless `good`.
inline void require(bool good, const char* promise) {
  if (!good) throw std::logic_error(std::string("a promise was broken: ") + promise);
}

/// Calls `body`, which may refuse its input. Returns false when it did.
template <class Body>
bool taken(const Body& body) {
  try {
    body();
    return true;
  } catch (const BadRequest&) {
    return false;
  }
}

/// Removes and returns the first byte, which selects one of several readers for the rest. Returns 0 for an empty input.
inline unsigned take_byte(std::string_view& input) {
  if (input.empty()) return 0;
  const auto byte = static_cast<unsigned char>(input.front());
  input.remove_prefix(1);
  return byte;
}

/// Returns a folder that lives as long as the process, in memory where the host has such a file system.
inline const std::filesystem::path& scratch_folder() {
  static const testing::TemporaryFolder folder(std::filesystem::is_directory("/dev/shm")
                                                   ? std::filesystem::path("/dev/shm")
                                                   : std::filesystem::temp_directory_path());
  return folder.path();
}

/// Overwrites a file of that name in the scratch folder, and returns its path.
inline std::filesystem::path scratch_file(const std::string& name, std::string_view bytes) {
  auto path = scratch_folder() / name;
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace spillway::fuzz
