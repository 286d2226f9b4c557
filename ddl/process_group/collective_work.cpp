#include "ddl/process_group/collective_work.h"

#include <ATen/core/jit_type.h>

#include <utility>

namespace spillway::ddl {
namespace {

/// Returns the devices whose streams a future must order. A future of the CPU's tensors has none.
std::vector<c10::Device> gpus_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> gpus;
  for (const at::Tensor& tensor : tensors)
    if (tensor.is_cuda() && gpus.empty()) gpus.push_back(tensor.device());
  return gpus;
}

}  // namespace

CollectiveWork::CollectiveWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs)
    : Work(rank, type, title, inputs),
      outputs_(std::move(outputs)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), gpus_of(outputs_))) {}

void CollectiveWork::complete(const std::exception_ptr& error) {
  finish(error);
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(outputs_));
}

}  // namespace spillway::ddl
