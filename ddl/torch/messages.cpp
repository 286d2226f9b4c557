#include "ddl/torch/messages.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cstring>
#include <span>
#include <utility>

#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

void check(at::TensorList tensors, size_t room, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.is_cpu(), "[ddl] ", operation, ": a tensor is on ", tensor.device(), "; allowed: the cpu");
    check_dense(tensor, operation);
  }
  TORCH_CHECK(total_bytes(tensors) <= static_cast<int64_t>(room), "[ddl] ", operation, ": the tensors have ",
              total_bytes(tensors), " bytes, and the channel's messages ", room);
}

void send_on_host(at::TensorList tensors, const Messages& messages, int64_t channel, int64_t step, int64_t micro_batch,
                  double seconds) {
  if (!messages->courier) return;
  messages->courier->send(channel, {step, micro_batch, seconds}, [&](std::span<std::byte> message) {
    check(tensors, message.size(), "send");
    for (const at::Tensor& tensor : tensors) {
      const auto bytes = bytes_of(tensor);
      if (!bytes.empty()) std::memcpy(message.data(), bytes.data(), bytes.size());
      message = message.subspan(bytes.size());
    }
  });
}

double receive_on_host(at::TensorList tensors, const Messages& messages, int64_t channel, int64_t step,
                       int64_t micro_batch) {
  if (!messages->courier) return 0;
  const Stamp stamp =
      messages->courier->receive(channel, {step, micro_batch, 0}, [&](std::span<const std::byte> message) {
        check(tensors, message.size(), "receive_");
        for (const at::Tensor& tensor : tensors) {
          const auto bytes = bytes_of(tensor);
          if (!bytes.empty()) std::memcpy(bytes.data(), message.data(), bytes.size());
          message = message.subspan(bytes.size());
        }
      });
  bump_versions(tensors);
  return stamp.seconds;
}

TORCH_LIBRARY_FRAGMENT(spillway, library) {
  library.class_<CourierHandle>("Courier");
  library.def(
      "send(Tensor[] tensors, __torch__.torch.classes.spillway.Courier courier, int channel, int step, int "
      "micro_batch, float seconds) -> ()");
  library.def(
      "receive_(Tensor(a!)[] tensors, __torch__.torch.classes.spillway.Courier courier, int channel, int step, int "
      "micro_batch) -> float");
}

TORCH_LIBRARY_IMPL(spillway, CompositeExplicitAutograd, library) {
  library.impl("send", send_on_host);
  library.impl("receive_", receive_on_host);
}

}  // namespace

CourierHandle::CourierHandle(std::shared_ptr<Communicator> comm, std::vector<Channel> channels)
    : memory(Courier::memory_bytes(channels)) {
  if (!comm->is_simulated()) courier.emplace(std::move(comm), std::move(channels), memory.bytes);
}

Messages make_messages(std::shared_ptr<Communicator> comm, std::vector<Channel> channels) {
  return c10::make_intrusive<CourierHandle>(std::move(comm), std::move(channels));
}

void send(at::TensorList tensors, const Messages& messages, size_t channel, const Stamp& stamp) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::send", "")
                                    .typed<void(at::TensorList, const Messages&, int64_t, int64_t, int64_t, double)>();
  const at::NoGradGuard no_grad;
  operation.call(tensors, messages, static_cast<int64_t>(channel), stamp.step, stamp.micro_batch, stamp.seconds);
}

double receive_(at::TensorList tensors, const Messages& messages, size_t channel, const Stamp& due) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::receive_", "")
                                    .typed<double(at::TensorList, const Messages&, int64_t, int64_t, int64_t)>();
  const at::NoGradGuard no_grad;
  return operation.call(tensors, messages, static_cast<int64_t>(channel), due.step, due.micro_batch);
}

}  // namespace spillway::ddl
