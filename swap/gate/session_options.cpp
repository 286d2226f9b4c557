#include "swap/gate/session_options.h"

#include "core/error.h"
#include "core/value_names.h"

namespace spillway {
namespace {

constexpr auto kEngines = value_names<Engine>({{Engine::gate, "gate"}, {Engine::unified, "unified"}});

}  // namespace

Engine parse_engine(std::string_view name) {
  return kEngines.parse("engine", name);
}
std::string_view name(Engine engine) {
  return kEngines.name(engine);
}

void SessionOptions::validate() const {
  if (device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
    throw BadRequest(str("SessionOptions.device is '", device, "'; allowed is cpu, cuda or cuda:N"));
  if (engine == Engine::unified && device == "cpu")
    throw BadRequest(
        "SessionOptions.engine is unified, which pages by CUDA's Unified Memory; it needs a GPU (device cuda or "
        "cuda:N), and on the cpu the engine is gate");
  if (engine == Engine::unified && (host_budget_bytes != kUnlimitedBytes || !disk_directory.empty()))
    throw BadRequest(
        "SessionOptions.engine is unified, whose host memory is the driver's; a host budget and a disk are the gate's");
  if (budget_bytes <= 0)
    throw BadRequest(str("SessionOptions.budget_bytes is ", budget_bytes, "; it must be positive"));
  if (host_budget_bytes <= 0)
    throw BadRequest(str("SessionOptions.host_budget_bytes is ", host_budget_bytes, "; it must be positive"));
  if (ranks_of_host < 1)
    throw BadRequest(str("SessionOptions.ranks_of_host is ", ranks_of_host, "; it must be at least 1"));
  if (min_page_bytes < 1)
    throw BadRequest(str("SessionOptions.min_page_bytes is ", min_page_bytes, "; it must be at least 1"));
  if (split_bytes < 0) throw BadRequest(str("SessionOptions.split_bytes is ", split_bytes, "; it must be positive"));
  if (small_page_bytes < 0)
    throw BadRequest(str("SessionOptions.small_page_bytes is ", small_page_bytes, "; it must not be negative"));
}

}  // namespace spillway
