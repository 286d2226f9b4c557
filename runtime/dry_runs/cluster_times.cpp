#include "runtime/dry_runs/cluster_times.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"
#include "swap/shapes/map_tensors.h"

namespace spillway::runtime {
namespace {

int64_t bytes_of(const c10::IValue& value) {
  int64_t bytes = 0;
  (void)swap::map_tensors(value, [&](const at::Tensor& tensor) {
    bytes += tensor.nbytes();
    return tensor;
  });
  return bytes;
}

double broadcast_seconds(const ddl::CommunicatorHandle& comm, int64_t bytes, const std::vector<int64_t>& members) {
  if (!comm.allreduce->costs()) return 0;
  const std::vector<int> ranks(members.begin(), members.end());
  return ddl::predict_broadcast_seconds(comm.communicator->levels(), bytes, ranks, *comm.allreduce->costs());
}

}  // namespace

double ClusterTimes::seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = op.schema().name();
  if (!name.starts_with("spillway::") || name == "spillway::eigh") return slowdown_ * kernels_->seconds(op, arguments);
  // How long a rank waits for a message, the others tell (dry_pipeline_steps()).
  if (name == "spillway::send" || name == "spillway::receive_") return 0;
  const auto comm = arguments[1].toCustomClass<ddl::CommunicatorHandle>();
  const int64_t bytes = bytes_of(arguments[0]);
  if (name == "spillway::broadcast_") return broadcast_seconds(*comm, bytes, arguments[3].toIntVector());
  const double both_halves = comm->allreduce->predicted_seconds(bytes);
  return name == "spillway::allreduce_" ? both_halves : both_halves / 2;
}

}  // namespace spillway::runtime
