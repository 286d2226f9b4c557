#include "core/host/processor.h"

#include <fstream>
#include <sstream>

#include "core/error.h"

namespace spillway {
namespace {

/// Returns the words of `text` with one space between them.
std::string single_spaced(const std::string& text) {
  std::istringstream in(text);
  std::string joined;
  for (std::string word; in >> word;) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

}  // namespace

std::string processor_model(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/cpuinfo");
  std::string implementer, part;
  for (std::string line; std::getline(in, line) && !(line.empty() && !part.empty());) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string value = single_spaced(line.substr(colon + 1));
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
  }
  return part.empty() ? "" : str("implementer ", implementer, ", part ", part);  // Arm
}

}  // namespace spillway
