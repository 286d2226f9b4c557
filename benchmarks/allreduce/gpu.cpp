#include "benchmarks/allreduce/gpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <functional>
#include <numeric>
#include <stdexcept>

#include "benchmarks/allreduce/inputs.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_backend.h"
#include "ddl/torch/gpu_operators.h"
#include "ddl/torch/staging_memory.h"
#include "ddl/torch/tensor_elements.h"

namespace spillway::tools {
namespace {

at::ScalarType type_of(ddl::Element element) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong})
    if (ddl::element_of(at::empty({0}, at::TensorOptions(type)), "bench allreduce") == element) return type;
  throw std::logic_error("an element of no known type");
}

/// Returns memory for `count` elements, behind as many elements as the vector's offset has.
at::Tensor empty_on(c10::Device gpu, const Problem& problem, int64_t count) {
  const int64_t skipped = problem.offset_bytes / ddl::element_bytes(problem.element);
  return at::empty({skipped + count}, at::TensorOptions(type_of(problem.element)).device(gpu)).slice(0, skipped);
}

class GpuVectors final : public Vectors {
 public:
  GpuVectors(const ddl::Comm& comm, ddl::GpuBackend& gpus, c10::Device gpu, const Problem& problem)
      : comm_(comm),
        gpus_(gpus),
        staged_(*comm->communicator, []() -> ddl::GpuNetwork* { throw std::runtime_error("this is asked for"); }),
        problem_(problem),
        levels_(ddl::reduces_by_nccl(problem.element, problem.reduction) ? gpus.levels(gpu) : nullptr),
        input_(problem.input(rank(), comm->communicator->size())),
        result_(problem.result(rank(), comm->communicator->size())),
        out_(empty_on(gpu, problem, problem.count)),
        in_(empty_on(gpu, problem, input_.size())) {
    std::vector<std::byte> values(input_.size() * ddl::element_bytes(problem.element));
    contribute(values, problem.element, problem.collective == Collective::broadcast ? kRoot : rank(), input_.begin);
    in_.copy_(at::from_blob(values.data(), in_.sizes(), in_.scalar_type()));
  }

  void spoil() override { out_.view(at::kByte).fill_(0xff); }
  void refill() override {
    spoil();
    copy_input();
  }
  void wait() override { ddl::recorded(out_.device()).wait(); }
  std::span<const std::byte> result() override {
    on_host_ = out_.slice(0, result_.begin, result_.end).cpu().contiguous();
    return ddl::bytes_of(on_host_);
  }

  std::vector<Way> ways() override {
    switch (problem_.collective) {
      case Collective::reduce_scatter:
        return {on_copy("levels", [this] { ddl::reduce_scatter_(out_, comm_, problem_.reduction); })};
      case Collective::all_gather:
        return {on_copy("levels", [this] { ddl::all_gather_(out_, comm_); })};
      case Collective::broadcast:
        return {on_copy("tree", [this] { ddl::broadcast_(out_, comm_, kRoot, all_ranks()); })};
      default:
        return ways_of_allreduce();
    }
  }

 private:
  int rank() const { return comm_->communicator->rank(); }
  std::vector<int64_t> all_ranks() const {
    std::vector<int64_t> ranks(comm_->communicator->size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  void copy_input() { out_.slice(0, input_.begin, input_.end).copy_(in_); }

  std::vector<Way> ways_of_allreduce() {
    std::vector<Way> ways{allreduce_over("levels", gpus_)};
    const bool sums_16_bits = ddl::partial_bytes(problem_.element) != ddl::element_bytes(problem_.element);
    if (levels_ && !sums_16_bits && problem_.reduction != ddl::Reduction::average)
      ways.push_back({.name = "nccl", .reduce = [this](bool in_place) {
                        levels_->all_reduce((in_place ? out_ : in_).data_ptr(), out_.data_ptr(), problem_.count,
                                            problem_.element, problem_.reduction);
                      }});
    if (levels_) ways.push_back(allreduce_over("staged", staged_));
    return ways;
  }

  Way allreduce_over(std::string name, ddl::GpuBackend& gpus) {
    return on_copy(std::move(name), [this, &gpus] { ddl::allreduce_on_gpus(out_, comm_, gpus, problem_.reduction); });
  }

  /// Makes a way that works in place; out of place it copies the input first.
  Way on_copy(std::string name, std::function<void()> body) {
    return {.name = std::move(name), .reduce = [this, body = std::move(body)](bool in_place) {
              if (!in_place) copy_input();
              body();
            }};
  }

  const ddl::Comm comm_;
  ddl::GpuBackend& gpus_;
  ddl::GpuBackend staged_;
  const Problem problem_;
  ddl::HierarchicalNccl* const levels_;  ///< null: staged
  const ddl::Range input_, result_;
  const at::Tensor out_, in_;
  at::Tensor on_host_;
};

}  // namespace

std::string decision(ddl::GpuBackend& gpus, c10::Device gpu, const Problem& problem) {
  (void)gpus.levels(gpu);
  if (ddl::reduces_by_nccl(problem.element, problem.reduction)) return gpus.decision();
  return str("staged on the host: the ", ddl::name_of(problem.reduction), " of ", ddl::name_of(problem.element),
             " is the CPU's");
}

std::unique_ptr<Vectors> vectors_on_gpu(const ddl::Comm& comm, ddl::GpuBackend& gpus, c10::Device gpu,
                                        const Problem& problem) {
  return std::make_unique<GpuVectors>(comm, gpus, gpu, problem);
}

}  // namespace spillway::tools
