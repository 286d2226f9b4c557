// Collectives among cards by NCCL. Part of libspillway_cuda.
#include <c10/core/Event.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstring>
#include <stdexcept>

#include "core/error.h"
#include "ddl/nccl/gpu_network.h"

namespace spillway::ddl {
namespace {

// Communicators do not block, so a call that goes on is none that failed.
void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* more = ncclGetLastError(comm);
  throw std::runtime_error(
      str("[nccl] ", call, " failed: ", ncclGetErrorString(result), more && *more ? "; " : "", more ? more : ""));
}

ncclDataType_t type_of(Element element) {
  switch (element) {
    case Element::float32:
      return ncclFloat32;
    case Element::float64:
      return ncclFloat64;
    case Element::float16:
      return ncclFloat16;
    case Element::bfloat16:
      return ncclBfloat16;
    case Element::int32:
      return ncclInt32;
    case Element::int64:
      return ncclInt64;
  }
  throw std::runtime_error("[nccl] an element of no known type");
}

ncclRedOp_t operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return ncclSum;
    case Reduction::maximum:
      return ncclMax;
    case Reduction::minimum:
      return ncclMin;
    case Reduction::average:
      break;
  }
  throw std::runtime_error("[nccl] averages are divided by who asked for the sum");
}

ncclConfig_t without_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// With the card as the current one. CUDA's errors are told in a line, as NCCL's are.
template <class Body>
auto on_card(c10::DeviceIndex card, Body&& body) try {
  const c10::cuda::CUDAGuard guard(card);
  return body();
} catch (const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  throw std::runtime_error("[nccl] " + text.substr(0, text.find('\n')));
}

class Group final : public DeviceGroup {
 public:
  explicit Group(int card) : card_(static_cast<c10::DeviceIndex>(card)) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Nothing is under way, or its outcome no longer matters: this ending needs no other rank.
  ~Group() override { abort(); }

  void join(const ncclUniqueId& id, int size, int rank) {
    ncclConfig_t config = without_blocking();
    on_card(card_,
            [&] { check(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", comm_); });
  }

  std::unique_ptr<DeviceGroup> split(int colour, int key) override {
    auto group = std::make_unique<Group>(card_);
    ncclConfig_t config = without_blocking();
    // NCCL writes the group's communicator while this one is in progress.
    on_card(card_, [&] { check(ncclCommSplit(comm_, colour, key, &group->comm_, &config), "ncclCommSplit", comm_); });
    return group;
  }

  void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) override {
    start("ncclReduceScatter", [&](cudaStream_t stream) {
      return ncclReduceScatter(from, to, static_cast<size_t>(count), type_of(element), operation_of(reduction), comm_,
                               stream);
    });
  }
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) override {
    start("ncclAllReduce", [&](cudaStream_t stream) {
      return ncclAllReduce(from, to, static_cast<size_t>(count), type_of(element), operation_of(reduction), comm_,
                           stream);
    });
  }
  void all_gather(const void* from, void* to, int64_t count, Element element) override {
    start("ncclAllGather", [&](cudaStream_t stream) {
      return ncclAllGather(from, to, static_cast<size_t>(count), type_of(element), comm_, stream);
    });
  }
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) override {
    int size = 0;
    check(ncclCommCount(comm_, &size), "ncclCommCount", comm_);
    start("ncclBroadcast", [&](cudaStream_t stream) {
      const auto count = static_cast<size_t>(bytes);
      if (static_cast<int>(members.size()) == size)
        return ncclBroadcast(data, data, count, ncclUint8, root, comm_, stream);
      return send_to(data, count, root, members, stream);
    });
  }

  bool finished() override {
    if (in_progress()) return false;
    return on_card(card_, [&] {
      if (started_) event_.record(c10::cuda::getCurrentCUDAStream(card_).unwrap());
      started_ = false;  // it is in the stream now
      return event_.query();
    });
  }

  void abort() noexcept override {
    if (comm_) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  template <class Call>
  void start(const char* name, Call&& call) {
    on_card(card_, [&] { check(call(c10::cuda::getCurrentCUDAStream(card_).stream()), name, comm_); });
    started_ = true;
  }

  bool in_progress() const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    check(state, "what was started", comm_);
    return state == ncclInProgress;
  }

  // Only members take part.
  ncclResult_t send_to(void* data, size_t bytes, int root, std::span<const int> members, cudaStream_t stream) {
    int rank = 0;
    check(ncclCommUserRank(comm_, &rank), "ncclCommUserRank", comm_);
    check(ncclGroupStart(), "ncclGroupStart", comm_);
    ncclResult_t result = ncclSuccess;
    const auto keep = [&](ncclResult_t next) {
      if (result == ncclSuccess && next != ncclInProgress) result = next;
    };
    if (rank != root) keep(ncclRecv(data, bytes, ncclUint8, root, comm_, stream));
    for (const int member : members)
      if (rank == root && member != root) keep(ncclSend(data, bytes, ncclUint8, member, comm_, stream));
    keep(ncclGroupEnd());
    return result;
  }

  const c10::DeviceIndex card_;
  ncclComm_t comm_ = nullptr;
  c10::Event event_{c10::kCUDA};
  bool started_ = false;
};

class Network final : public DeviceNetwork {
 public:
  std::string name() const override {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return str("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  std::string name_of_card(int card) override {
    char name[32] = {};
    on_card(static_cast<c10::DeviceIndex>(card),
            [&] { C10_CUDA_CHECK(cudaDeviceGetPCIBusId(name, sizeof name, card)); });
    return name;
  }
  Invitation invite() override {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    Invitation invitation;
    static_assert(sizeof id == sizeof invitation);
    std::memcpy(invitation.data(), &id, sizeof id);
    return invitation;
  }
  std::unique_ptr<DeviceGroup> join(const Invitation& invitation, int size, int rank, int card) override {
    ncclUniqueId id;
    std::memcpy(&id, invitation.data(), sizeof id);
    auto group = std::make_unique<Group>(card);
    group->join(id, size, rank);
    return group;
  }
};

}  // namespace
}  // namespace spillway::ddl

extern "C" __attribute__((visibility("default"))) spillway::ddl::DeviceNetwork* spillway_open_nccl() {
  static spillway::ddl::Network network;
  return &network;
}
