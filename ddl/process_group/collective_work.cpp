#include "ddl/process_group/collective_work.h"

#include <ATen/core/jit_type.h>

#include <utility>

#include "ddl/point_to_point/point_to_point.h"
#include "ddl/process_group/callback_threads.h"

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
                               std::vector<at::Tensor> outputs, CallbackThreads& callbacks)
    : Work(rank, type, title, inputs),
      outputs_(std::move(outputs)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), gpus_of(outputs_))),
      callbacks_(callbacks) {}

void CollectiveWork::complete(const std::exception_ptr& error) {
  finish(error);
  {
    const std::lock_guard lock(future_mutex_);
    if (!future_is_known_) return complete_future(error);
  }
  auto self = c10::intrusive_ptr<CollectiveWork>::reclaim_copy(this);
  callbacks_.run([self = std::move(self), error] { self->complete_future(error); });
}

void CollectiveWork::complete_future(const std::exception_ptr& error) {
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(outputs_));
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  future_is_known_ = true;
  return future_;
}

void MessageWork::deliver_to_waiter(std::function<void()> deliver) {
  deliver_ = std::move(deliver);
  has_future_ = false;
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  waiting_->begin();
  Work::wait(timeout);
  deliver();
  return true;
}

bool MessageWork::isCompleted() {
  if (!Work::isCompleted()) return false;
  if (isSuccess()) deliver();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  TORCH_CHECK_NOT_IMPLEMENTED(has_future_,
                              "[ddl] recv has no future inside a Session, for a tensor of a GPU, and for one that is "
                              "not contiguous, because its bytes are delivered to whoever waits; use work.wait()");
  return CollectiveWork::getFuture();
}

void MessageWork::deliver() {
  const std::lock_guard lock(deliver_mutex_);
  if (!deliver_) return;
  deliver_();  // which may throw, and is then tried again
  deliver_ = nullptr;
}

}  // namespace spillway::ddl
