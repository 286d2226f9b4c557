#include "ddl/torch/comm.h"

#include <utility>

#include "ddl/allreduce/calibration.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/gpu_backend.h"

namespace spillway::ddl {

CommunicatorHandle::CommunicatorHandle(std::shared_ptr<Communicator> given, std::optional<Costs> costs)
    : communicator(std::move(given)),
      allreduce(std::make_unique<TunedAllreduce>(*communicator, std::move(costs))),
      gpus(std::make_unique<GpuBackend>(*communicator)) {}
CommunicatorHandle::~CommunicatorHandle() = default;

Comm make_comm(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs) {
  return c10::make_intrusive<CommunicatorHandle>(std::move(communicator), std::move(costs));
}
Comm make_comm(std::shared_ptr<Communicator> communicator) {
  return make_comm(std::move(communicator), std::nullopt);
}
Comm make_calibrated_comm(std::shared_ptr<Communicator> communicator) {
  const Costs costs = calibrate(*communicator);
  return make_comm(std::move(communicator), costs);
}

int rank_of(const Comm& comm) {
  return comm ? comm->communicator->rank() : 0;
}

int size_of(const Comm& comm) {
  return comm ? comm->communicator->size() : 1;
}

Range own_part(int64_t count, const Comm& comm) {
  return part_of({0, count}, comm->communicator->rank(), comm->communicator->size());
}

}  // namespace spillway::ddl
