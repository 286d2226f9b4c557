#include "kfac/exchange.h"

#include <ATen/ATen.h>

#include <utility>

namespace spillway::kfac {

Exchange::Exchange(ddl::Comm comm) : comm_(std::move(comm)) {
  if (!comm_) return;
  rank_ = comm_->communicator->rank();
  world_ = comm_->communicator->size();
}

void Exchange::average_(at::TensorList tensors) const {
  if (world_ > 1) ddl::allreduce_(tensors, comm_, ddl::Reduction::average);
}

void Exchange::broadcast_(at::TensorList tensors, int64_t root, at::IntArrayRef members) const {
  if (members.size() > 1) ddl::broadcast_(tensors, comm_, root, members);
}

}  // namespace spillway::kfac
