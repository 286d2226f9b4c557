// The reductions that end on chosen ranks or travel in 16 bits, as operators.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <vector>

#include "core/category.h"
#include "ddl/home_reduce.h"
#include "ddl/operators.h"

namespace spillway::ddl {
namespace {

Element element_of(const at::Tensor& vector, const char* operation) {
  TORCH_CHECK(vector.device().is_cpu() && vector.is_contiguous() && vector.dim() == 1, "[ddl] ", operation,
              ": a tensor of sizes ", vector.sizes(), " on ", vector.device(), "; allowed: a contiguous vector on cpu");
  if (vector.scalar_type() == at::kFloat) return Element::float32;
  if (vector.scalar_type() == at::kBFloat16) return Element::bfloat16;
  TORCH_CHECK(vector.scalar_type() == at::kHalf, "[ddl] ", operation, ": a tensor is ", vector.scalar_type(),
              "; allowed: Float, BFloat16, Half");
  return Element::float16;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor staging(int64_t bytes) {
  const CategoryScope scope(Category::staging);
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

Reduction reduction_of(int64_t reduction) {
  TORCH_CHECK(reduction == 0 || reduction == 1, "[ddl] reduce_: reduction is ", reduction,
              "; allowed: 0 (sum), 1 (average)");
  return static_cast<Reduction>(reduction);
}

void allreduce_flat_kernel(const at::Tensor& vector, const Comm& comm, int64_t reduction) {
  const auto element = element_of(vector, "allreduce_flat_");
  const auto scratch = staging(flat_scratch_bytes(*comm->communicator, vector.numel(), element));
  allreduce_flat(*comm->communicator, bytes_of(vector), element, reduction_of(reduction), bytes_of(scratch));
  vector.unsafeGetTensorImpl()->bump_version();
}

void reduce_kernel(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
                   int64_t reduction) {
  const auto element = element_of(vector, "reduce_");
  TORCH_CHECK(ends.size() == homes.size(), "[ddl] reduce_: ", ends.size(), " parts have ", homes.size(), " homes");
  std::vector<HomePart> parts;
  for (size_t i = 0; i < ends.size(); ++i)
    parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, static_cast<int>(homes[i])});
  const auto scratch = staging(home_scratch_bytes(*comm->communicator, vector.numel(), element, parts));
  reduce_at_homes(*comm->communicator, bytes_of(vector), element, parts, reduction_of(reduction), bytes_of(scratch));
  vector.unsafeGetTensorImpl()->bump_version();
}

// Declared in operators.cpp, after the class that their schemas name.
TORCH_LIBRARY_IMPL(spillway, CompositeExplicitAutograd, library) {
  library.impl("allreduce_flat_", allreduce_flat_kernel);
  library.impl("reduce_", reduce_kernel);
}

}  // namespace

void allreduce_vector_(const at::Tensor& vector, const Comm& comm, Reduction reduction) {
  if (vector.scalar_type() == at::kFloat) return allreduce_(vector, comm, reduction);
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::allreduce_flat_", "")
                                    .typed<void(const at::Tensor&, const Comm&, int64_t)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm, static_cast<int64_t>(reduction));
}

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
