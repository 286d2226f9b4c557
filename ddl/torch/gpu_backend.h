/// The backend by which the ranks of a communicator reduce tensors that are on GPUs.
#pragma once
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ddl/comm/communicator.h"
#include "ddl/nccl/gpu_network.h"
#include "ddl/nccl/hierarchical_nccl.h"

namespace spillway::ddl {

/// The answer of one rank about its GPU, before all ranks decide alike.
struct GpuCapability {
  std::array<char, 32> gpu{};       ///< its name within the host
  std::array<char, 32> network{};   ///< the library's name; empty: there is none
  std::array<char, 192> without{};  ///< reason why there is no library
  int32_t host = 0;
  int32_t deterministic = 0;  ///< 1: the order of sums must not depend on sizes
};

struct GpuBackendChoice {
  bool uses_nccl = false;
  /// The choice for people: `NCCL 2.28.9, by levels 4x2`; `staged on the host: ranks 0 and 1 share GPU 0000:3b:00.0`.
  std::string text;
};

/// Decides from all ranks' answers, by rank.
GpuBackendChoice decide(std::span<const GpuCapability> answers, const Levels& levels);

/// The backend of one communicator. GPUs talk to each other where every rank has a GPU of its own and the library is
/// there. Else their bytes are staged on the host, whose allreduce reduces them. All ranks together decide that once.
class GpuBackend {
 public:
  /// A function that returns the library, or throws std::runtime_error that names the missing part.
  using FindNetwork = std::function<GpuNetwork*()>;
  /// Takes a communicator that outlives it. `find_network` finds NCCL by default.
  explicit GpuBackend(Communicator& comm, FindNetwork find_network = {});

  /// Returns the GPUs together, or nullptr where bytes are staged. The first call is collective and decides. Throws
  /// CommError, on the waiting ranks too, when this rank used another GPU at first.
  HierarchicalNccl* levels(c10::Device gpu);
  bool decided() const noexcept { return decision_.has_value(); }
  bool uses_nccl() const noexcept { return levels_ != nullptr; }
  /// Returns the decision for people; empty before the first tensor on a GPU.
  std::string decision() const { return decision_ ? decision_->text : std::string(); }

 private:
  GpuCapability answer(c10::Device gpu);
  void init(c10::Device gpu);

  Communicator& comm_;
  const FindNetwork find_network_;
  GpuNetwork* network_ = nullptr;
  std::optional<c10::Device> gpu_;
  std::optional<GpuBackendChoice> decision_;
  std::unique_ptr<HierarchicalNccl> levels_;
};

}  // namespace spillway::ddl
