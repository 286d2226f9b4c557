/// How the ranks of a communicator reduce tensors that are on cards.
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
#include "ddl/nccl/hierarchical_allreduce.h"

namespace spillway::ddl {

/// What one rank says of its card, before all decide alike.
struct CardAnswer {
  std::array<char, 32> card{};      ///< its name within the host
  std::array<char, 32> network{};   ///< the library's name; empty: there is none
  std::array<char, 192> without{};  ///< why there is none
  int32_t host = 0;
  int32_t deterministic = 0;  ///< the order of sums must not depend on sizes
};

struct CardDecision {
  bool by_network = false;
  /// `NCCL 2.28.9, by levels 4x2`; `staged on the host: ranks 0 and 1 share card 0000:3b:00.0`.
  std::string text;
};

/// From all ranks' answers, by rank.
CardDecision decide(std::span<const CardAnswer> answers, const Levels& levels);

/// Cards talk to each other where every rank has one of its own and the library is there; else their bytes are staged
/// on the host, whose allreduce reduces them. That is decided once, by all ranks together.
class Cards {
 public:
  /// The library, or throws std::runtime_error with what is missing.
  using FindNetwork = std::function<DeviceNetwork*()>;
  /// `comm` outlives it. `find_network`: NCCL by default.
  explicit Cards(Communicator& comm, FindNetwork find_network = {});

  /// The cards together; nullptr where bytes are staged. The first call is collective and decides. Throws CommError,
  /// on the waiting ranks too, when this rank used another card at first.
  DeviceLevels* levels(c10::Device card);
  bool decided() const noexcept { return decision_.has_value(); }
  bool by_network() const noexcept { return levels_ != nullptr; }
  /// For people; empty before the first tensor on a card.
  std::string decision() const { return decision_ ? decision_->text : std::string(); }

 private:
  CardAnswer answer(c10::Device card);
  void meet(c10::Device card);

  Communicator& comm_;
  const FindNetwork find_network_;
  DeviceNetwork* network_ = nullptr;
  std::optional<c10::Device> card_;
  std::optional<CardDecision> decision_;
  std::unique_ptr<DeviceLevels> levels_;
};

}  // namespace spillway::ddl
