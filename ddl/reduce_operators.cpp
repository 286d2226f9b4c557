// The reductions that end on chosen ranks, as an operator.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <vector>

#include "ddl/home_reduce.h"
#include "ddl/operators.h"
#include "ddl/tensors.h"

namespace spillway::ddl {
namespace {

void reduce_kernel(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
                   int64_t reduction) {
  check_dense(vector, "reduce_");
  const auto element = element_of(vector, "reduce_");
  TORCH_CHECK(ends.size() == homes.size(), "[ddl] reduce_: ", ends.size(), " parts have ", homes.size(), " homes");
  std::vector<HomePart> parts;
  for (size_t i = 0; i < ends.size(); ++i)
    parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, static_cast<int>(homes[i])});
  const auto scratch = staging_bytes(home_scratch_bytes(*comm->communicator, vector.numel(), element, parts));
  reduce_at_homes(*comm->communicator, bytes_of(vector), element, parts, reduction_of(reduction, "reduce_"),
                  bytes_of(scratch));
  vector.unsafeGetTensorImpl()->bump_version();
}

// Declared in operators.cpp, after the class that their schemas name.
TORCH_LIBRARY_IMPL(spillway, CompositeExplicitAutograd, library) {
  library.impl("reduce_", reduce_kernel);
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

}  // namespace spillway::ddl
