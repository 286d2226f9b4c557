#include "ddl/torch/gpu_backend.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"

namespace spillway::ddl {
namespace {

DeviceNetwork* find_nccl() {
  return reinterpret_cast<OpenDeviceNetwork>(find_in_cuda_library(kOpenDeviceNetwork))();
}

template <size_t N>
void write(std::array<char, N>& field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field.begin());
}

CardDecision staged(const std::string& why) {
  return {false, "staged on the host: " + why};
}

}  // namespace

CardDecision decide(std::span<const CardAnswer> answers, const Levels& levels) {
  std::map<std::pair<int32_t, std::string>, size_t> owners;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const CardAnswer& answer = answers[rank];
    if (answer.deterministic)
      return staged(str("rank ", rank, " asked for deterministic algorithms, whose sums keep the order of ranks"));
    if (answer.network[0] == 0) return staged(str("rank ", rank, ": ", answer.without.data()));
    if (answer.network != answers[0].network)
      return staged(str("rank 0 has ", answers[0].network.data(), ", rank ", rank, " ", answer.network.data()));
    const auto [owner, its_own] = owners.emplace(std::pair(answer.host, answer.card.data()), rank);
    if (!its_own) return staged(str("ranks ", owner->second, " and ", rank, " share card ", answer.card.data()));
  }
  const std::string name = answers[0].network.data();
  if (levels.count() == 0) return {true, name};
  return {true, str(name, is_even(levels) ? ", by levels " : ", all ranks as one level, for uneven ", levels.shape())};
}

Cards::Cards(Communicator& comm, FindNetwork find_network)
    : comm_(comm), find_network_(find_network ? std::move(find_network) : find_nccl) {}

CardAnswer Cards::answer(c10::Device card) {
  CardAnswer answer;
  answer.host = comm_.hosts()[static_cast<size_t>(comm_.rank())];
  answer.deterministic = at::globalContext().deterministicAlgorithms();
  try {
    network_ = find_network_();
    write(answer.card, network_->name_of_card(card.index()));
    write(answer.network, network_->name());
  } catch (const std::exception& missing) {
    write(answer.without, missing.what());
  }
  return answer;
}

DeviceLevels* Cards::levels(c10::Device card) {
  if (card_ && *card_ != card)  // the other ranks may be waiting for this one
    comm_.fail(str("a tensor is on ", card.str(), ", but this communicator's were on ", card_->str(),
                   "; allowed: one card for each communicator"));
  if (decision_) return levels_.get();
  const CardAnswer own = answer(card);
  std::vector<CardAnswer> all(static_cast<size_t>(comm_.size()));
  allgather(comm_, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  CardDecision decision = decide(all, comm_.levels());
  if (decision.by_network) meet(card);
  card_ = card;
  decision_ = std::move(decision);
  return levels_.get();
}

void Cards::meet(c10::Device card) {
  Invitation invitation{};
  std::unique_ptr<DeviceGroup> world;
  try {
    if (comm_.rank() == 0) invitation = network_->invite();
  } catch (const std::exception& error) {
    comm_.fail(error.what());
  }
  broadcast(comm_, invitation, 0);
  try {
    world = network_->join(invitation, comm_.size(), comm_.rank(), card.index());
  } catch (const std::exception& error) {
    comm_.fail(error.what());
  }
  levels_ = std::make_unique<DeviceLevels>(comm_, std::move(world));
}

}  // namespace spillway::ddl
