#include "kfac/comm/rank_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/comm.h"

namespace spillway::kfac {
namespace {

template <class T>
std::vector<T> gather_all(ddl::Communicator& comm, std::span<const T> own) {
  std::vector<T> all(own.size() * comm.size());
  ddl::allgather(comm, std::as_bytes(own), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

RankExchange::RankExchange(ddl::Comm comm) : comm_(std::move(comm)) {
  if (!comm_) return;
  rank_ = comm_->communicator->rank();
  world_ = comm_->communicator->size();
}

void RankExchange::reduce_(const at::Tensor& vector, ddl::Reduction reduction) const {
  if (world_ > 1) ddl::allreduce_(vector, comm_, reduction);
}

void RankExchange::reduce_at_(const at::Tensor& vector, at::IntArrayRef ends, at::IntArrayRef homes,
                              ddl::Reduction reduction) const {
  if (world_ > 1) ddl::reduce_(vector, comm_, ends, homes, reduction);
}

void RankExchange::broadcast_(at::TensorList tensors, int64_t root, at::IntArrayRef members) const {
  if (members.size() > 1) ddl::broadcast_(tensors, comm_, root, members);
}

std::vector<double> RankExchange::gather(const std::vector<double>& own) const {
  return world_ == 1 ? own : gather_all(*comm_->communicator, std::span(own));
}

void RankExchange::require_same(uint64_t signature, const char* what) const {
  if (world_ == 1) return;
  const auto all = gather_all(*comm_->communicator, std::span<const uint64_t>(&signature, 1));
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t s) { return s != all.front(); });
  if (other != all.end())
    throw BadRequest(str("[kfac] rank ", other - all.begin(), " of ", world_, " has ", what,
                         " other than rank 0's; required: the same on every rank"));
}

void RankExchange::check_together(const std::function<void()>& check) const {
  if (world_ == 1) return check();
  ddl::check_together(*comm_->communicator, check);
}

}  // namespace spillway::kfac
