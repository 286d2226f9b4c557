/// Communicators as the dispatcher's operators take them.
#pragma once
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ddl/comm/element.h"

namespace spillway::ddl {

class GpuBackend;
class Communicator;
struct Costs;
class TunedAllreduce;

/// A Communicator as operators take it (a torchbind class, `spillway::Communicator`), with its allreduces. Their plans
/// and work lists are kept between calls.
struct CommunicatorHandle final : torch::CustomClassHolder {
  CommunicatorHandle(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs);
  ~CommunicatorHandle() override;
  const std::shared_ptr<Communicator> communicator;
  const std::unique_ptr<TunedAllreduce> allreduce;
  const std::unique_ptr<GpuBackend> gpus;  ///< for tensors that are on a GPU
};
using Comm = c10::intrusive_ptr<CommunicatorHandle>;

/// Wraps a communicator for the operators. `costs`, the same on every rank, let them choose a plan for each size
/// (TunedAllreduce). No bit of a result depends on `costs`.
Comm make_comm(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs);
Comm make_comm(std::shared_ptr<Communicator> communicator);

/// Returns this rank's number; 0 where `comm` is null. size_of() returns the number of ranks; 1 where `comm` is null.
int rank_of(const Comm& comm);
int size_of(const Comm& comm);

/// Returns the elements of a vector of `count` that are this rank's in reduce_scatter_ and all_gather_. They are part
/// rank() of size() parts, as equal as can be.
Range own_part(int64_t count, const Comm& comm);

}  // namespace spillway::ddl
