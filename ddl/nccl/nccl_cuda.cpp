// Collectives among GPUs by NCCL. Part of libspillway_cuda.
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

// Communicators do not block, so a call that is still in progress has not failed.
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

/// Runs `body` with `gpu` as the current GPU. CUDA's errors are told in one line, as NCCL's are.
template <class Body>
auto on_gpu(c10::DeviceIndex gpu, Body&& body) try {
  const c10::cuda::CUDAGuard guard(gpu);
  return body();
} catch (const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  throw std::runtime_error("[nccl] " + text.substr(0, text.find('\n')));
}

class Group final : public GpuCommunicator {
 public:
  explicit Group(int gpu) : gpu_(static_cast<c10::DeviceIndex>(gpu)) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Nothing is under way, or its outcome no longer matters. An abort needs no other rank.
  ~Group() override { abort(); }

  void join(const ncclUniqueId& id, int size, int rank) {
    ncclConfig_t config = without_blocking();
    on_gpu(gpu_,
           [&] { check(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", comm_); });
  }

  std::unique_ptr<GpuCommunicator> split(int color, int key) override {
    auto group = std::make_unique<Group>(gpu_);
    ncclConfig_t config = without_blocking();
    // NCCL writes the group's communicator while this one is in progress.
    on_gpu(gpu_, [&] { check(ncclCommSplit(comm_, color, key, &group->comm_, &config), "ncclCommSplit", comm_); });
    return group;
  }

  void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) override {
    start("ncclReduceScatter", [&](cudaStream_t stream) {
      return ncclReduceScatter(from, to, count, type_of(element), operation_of(reduction), comm_, stream);
    });
  }
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) override {
    start("ncclAllReduce", [&](cudaStream_t stream) {
      return ncclAllReduce(from, to, count, type_of(element), operation_of(reduction), comm_, stream);
    });
  }
  void all_gather(const void* from, void* to, int64_t count, Element element) override {
    start("ncclAllGather",
          [&](cudaStream_t stream) { return ncclAllGather(from, to, count, type_of(element), comm_, stream); });
  }
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) override {
    int size = 0;
    check(ncclCommCount(comm_, &size), "ncclCommCount", comm_);
    start("ncclBroadcast", [&](cudaStream_t stream) {
      const size_t count = bytes;
      if (std::ssize(members) == size) return ncclBroadcast(data, data, count, ncclUint8, root, comm_, stream);
      return send_to(data, count, root, members, stream);
    });
  }

  bool finished() override {
    if (in_progress()) return false;
    return on_gpu(gpu_, [&] {
      if (started_) event_.record(c10::cuda::getCurrentCUDAStream(gpu_).unwrap());
      started_ = false;  // the work is in the stream now
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
    on_gpu(gpu_, [&] { check(call(c10::cuda::getCurrentCUDAStream(gpu_).stream()), name, comm_); });
    started_ = true;
  }

  bool in_progress() const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    check(state, "what was started", comm_);
    return state == ncclInProgress;
  }

  // Sends the bytes of `root` to the members; only they take part.
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

  const c10::DeviceIndex gpu_;
  ncclComm_t comm_ = nullptr;
  c10::Event event_{c10::kCUDA};
  bool started_ = false;
};

class Network final : public GpuNetwork {
 public:
  std::string name() const override {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return str("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  std::string gpu_name(int gpu) override {
    char name[32] = {};
    on_gpu(static_cast<c10::DeviceIndex>(gpu), [&] { C10_CUDA_CHECK(cudaDeviceGetPCIBusId(name, sizeof name, gpu)); });
    return name;
  }
  NcclUniqueId make_unique_id() override {
    ncclUniqueId id;
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    NcclUniqueId invitation;
    static_assert(sizeof id == sizeof invitation);
    std::memcpy(invitation.data(), &id, sizeof id);
    return invitation;
  }
  std::unique_ptr<GpuCommunicator> join(const NcclUniqueId& invitation, int size, int rank, int gpu) override {
    ncclUniqueId id;
    std::memcpy(&id, invitation.data(), sizeof id);
    auto group = std::make_unique<Group>(gpu);
    group->join(id, size, rank);
    return group;
  }
};

}  // namespace
}  // namespace spillway::ddl

extern "C" __attribute__((visibility("default"))) spillway::ddl::GpuNetwork* spillway_open_nccl() {
  static spillway::ddl::Network network;
  return &network;
}
