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

GpuNetwork* find_nccl() {
  return reinterpret_cast<OpenDeviceNetwork>(find_in_cuda_library(kOpenDeviceNetwork))();
}

template <size_t N>
void write(std::array<char, N>& field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field.begin());
}

GpuBackendChoice staged(const std::string& why) {
  return {false, "staged on the host: " + why};
}

}  // namespace

GpuBackendChoice decide(std::span<const GpuCapability> answers, const Levels& levels) {
  std::map<std::pair<int32_t, std::string>, size_t> owners;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const GpuCapability& answer = answers[rank];
    if (answer.deterministic)
      return staged(str("rank ", rank, " asked for deterministic algorithms, whose sums keep the order of ranks"));
    if (answer.network[0] == 0) return staged(str("rank ", rank, ": ", answer.without.data()));
    if (answer.network != answers[0].network)
      return staged(str("rank 0 has ", answers[0].network.data(), ", rank ", rank, " ", answer.network.data()));
    const auto [owner, its_own] = owners.emplace(std::pair(answer.host, answer.gpu.data()), rank);
    if (!its_own) return staged(str("ranks ", owner->second, " and ", rank, " share GPU ", answer.gpu.data()));
  }
  const std::string name = answers[0].network.data();
  if (levels.count() == 0) return {true, name};
  return {true, str(name, is_even(levels) ? ", by levels " : ", all ranks as one level, for uneven ", levels.shape())};
}

GpuBackend::GpuBackend(Communicator& comm, FindNetwork find_network)
    : comm_(comm), find_network_(find_network ? std::move(find_network) : find_nccl) {}

GpuCapability GpuBackend::answer(c10::Device gpu) {
  GpuCapability answer;
  answer.host = comm_.hosts()[comm_.rank()];
  answer.deterministic = at::globalContext().deterministicAlgorithms();
  try {
    network_ = find_network_();
    write(answer.gpu, network_->gpu_name(gpu.index()));
    write(answer.network, network_->name());
  } catch (const std::exception& missing) {
    write(answer.without, missing.what());
  }
  return answer;
}

HierarchicalNccl* GpuBackend::levels(c10::Device gpu) {
  if (gpu_ && *gpu_ != gpu)  // the other ranks may be waiting for this one
    comm_.fail(str("a tensor is on ", gpu.str(), ", but this communicator's were on ", gpu_->str(),
                   "; allowed: one GPU for each communicator"));
  if (decision_) return levels_.get();
  const GpuCapability own = answer(gpu);
  std::vector<GpuCapability> all(comm_.size());
  allgather(comm_, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  for (GpuCapability& answer : all)  // they came over a wire
    answer.gpu.back() = answer.network.back() = answer.without.back() = 0;
  GpuBackendChoice decision = decide(all, comm_.levels());
  if (decision.uses_nccl) init(gpu);
  gpu_ = gpu;
  decision_ = std::move(decision);
  return levels_.get();
}

void GpuBackend::init(c10::Device gpu) {
  NcclUniqueId invitation{};
  std::unique_ptr<GpuCommunicator> world;
  try {
    if (comm_.rank() == 0) invitation = network_->make_unique_id();
  } catch (const std::exception& error) {
    comm_.fail(error.what());
  }
  broadcast(comm_, invitation, 0);
  try {
    world = network_->join(invitation, comm_.size(), comm_.rank(), gpu.index());
  } catch (const std::exception& error) {
    comm_.fail(error.what());
  }
  levels_ = std::make_unique<HierarchicalNccl>(comm_, std::move(world));
}

}  // namespace spillway::ddl
