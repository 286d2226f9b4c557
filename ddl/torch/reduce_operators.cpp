// The reductions that end on chosen ranks, as an operator.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "ddl/allreduce/owner_reduction.h"
#include "ddl/torch/dense_tensor.h"
#include "ddl/torch/operators.h"

namespace spillway::ddl {
namespace {

HomeReduction reduction_over(const at::Tensor& vector, const Comm& comm, std::vector<HomePart> parts,
                             const char* operation) {
  check_dense(vector, operation);
  return {*comm->communicator, vector.numel(), element_of(vector, operation), std::move(parts),
          comm->allreduce.piece_bytes()};
}

void reduce_parts(const at::Tensor& vector, const Comm& comm, std::vector<HomePart> parts, int64_t reduction,
                  const char* operation) {
  HomeReduction at_homes = reduction_over(vector, comm, std::move(parts), operation);
  const auto scratch = staging_bytes(at_homes.reduce_scratch_bytes());
  at_homes.reduce(bytes_of(vector), reduction_of(reduction, operation), bytes_of(scratch));
  vector.unsafeGetTensorImpl()->bump_version();
}

void reduce_kernel(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
                   int64_t reduction) {
  TORCH_CHECK(ends.size() == homes.size(), "[ddl] reduce_: ", ends.size(), " parts have ", homes.size(), " homes");
  std::vector<HomePart> parts;
  for (size_t i = 0; i < ends.size(); ++i)
    parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, static_cast<int>(homes[i])});
  reduce_parts(vector, comm, std::move(parts), reduction, "reduce_");
}

void reduce_scatter_kernel(const at::Tensor& vector, const Comm& comm, int64_t reduction) {
  reduce_parts(vector, comm, equal_parts(vector.numel(), comm->communicator->size()), reduction, "reduce_scatter_");
}

void all_gather_kernel(const at::Tensor& vector, const Comm& comm) {
  auto parts = equal_parts(vector.numel(), comm->communicator->size());
  reduction_over(vector, comm, std::move(parts), "all_gather_").gather(bytes_of(vector));
  vector.unsafeGetTensorImpl()->bump_version();
}

// Declared in operators.cpp, after the class that their schemas name.
TORCH_LIBRARY_IMPL(spillway, CompositeExplicitAutograd, library) {
  library.impl("reduce_", reduce_kernel);
  library.impl("reduce_scatter_", reduce_scatter_kernel);
  library.impl("all_gather_", all_gather_kernel);
}

}  // namespace

void reduce_(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
             Reduction reduction) {
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("spillway::reduce_", "")
          .typed<void(const at::Tensor&, const Comm&, at::IntArrayRef, at::IntArrayRef, int64_t)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm, ends, homes, static_cast<int64_t>(reduction));
}

void reduce_scatter_(const at::Tensor& vector, const Comm& comm, Reduction reduction) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::reduce_scatter_", "")
                                    .typed<void(const at::Tensor&, const Comm&, int64_t)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm, static_cast<int64_t>(reduction));
}

void all_gather_(const at::Tensor& vector, const Comm& comm) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::all_gather_", "")
                                    .typed<void(const at::Tensor&, const Comm&)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm);
}

Range own_part(int64_t count, const Comm& comm) {
  return part_of({0, count}, comm->communicator->rank(), comm->communicator->size());
}

}  // namespace spillway::ddl
