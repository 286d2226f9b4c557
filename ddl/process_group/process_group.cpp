#include "ddl/process_group/process_group.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/collectives.h"
#include "ddl/point_to_point/point_to_point.h"
#include "ddl/process_group/blocking_collectives.h"
#include "ddl/process_group/callback_threads.h"
#include "ddl/process_group/collective_work.h"
#include "ddl/process_group/host_buffers.h"
#include "ddl/torch/tensor_elements.h"

namespace spillway::ddl {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkHandle = c10::intrusive_ptr<c10d::Work>;

Comm make(const std::shared_ptr<Communicator>& comm, bool calibrate) {
  return calibrate && comm->size() > 1 ? make_calibrated_comm(comm) : make_comm(comm);
}

/// Takes the one tensor of a list; torch's lists are for several GPUs of one process.
template <class T>
T& only(std::vector<T>& list, const char* operation) {
  TORCH_CHECK(list.size() == 1, "[ddl] ", operation, ": ", list.size(), " tensors; allowed: one");
  return list[0];
}

int checked_root(int64_t root, int size, const char* operation) {
  TORCH_CHECK(root >= 0 && root < size, "[ddl] ", operation, ": rank ", root, " of ", size);
  return static_cast<int>(root);
}

void refuse_sparse(const Tensors& tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK(tensor.layout() == at::kStrided, "[ddl] ", operation, ": a tensor is ", tensor.layout(),
                "; the backend spillway takes dense ones");
}

/// Throws for tensors with elements in one place, where the outcome would depend on the order of writes.
void refuse_overlap(const Tensors& outputs) {
  for (const at::Tensor& output : outputs) at::assert_no_internal_overlap(output);
}

bool any_on_gpu(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cuda(); });
}

/// Cuts a tensor along its first dimension. No sizes: into equal parts.
Tensors cut(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int ranks) {
  if (!sizes.empty()) return tensor.split_with_sizes(sizes);
  TORCH_CHECK(tensor.size(0) % ranks == 0, "[ddl] all_to_all: a first dimension of ", tensor.size(0), " for ", ranks,
              " ranks");
  return tensor.split_with_sizes(std::vector<int64_t>(ranks, tensor.size(0) / ranks));
}

}  // namespace

ProcessGroup::ProcessGroup(const std::shared_ptr<Communicator>& comm, ProcessGroupOptions options)
    : Backend(comm->rank(), comm->size()),
      options_(std::move(options)),
      process_(getpid()),
      callbacks_(std::make_unique<CallbackThreads>()),
      comm_(make(comm, options_.calibrate)),
      messages_(std::make_unique<PointToPoint>(comm->duplicate())),
      queue_(std::make_unique<BackgroundQueue>(comm, "collectives")) {
  init();
}

ProcessGroup::~ProcessGroup() {
  if (getpid() == process_) return;
  // A child of fork() has none of the threads that would have to end.
  (void)callbacks_.release();
  (void)messages_.release();
  (void)queue_.release();
}

void ProcessGroup::require_usable() const {
  TORCH_CHECK(getpid() == process_, "[ddl] this process was forked from rank ", getRank(), ", process ", process_,
              ", which alone can use the group; make a group of its own, or start it by spawn");
  TORCH_CHECK(queue_, "[ddl] rank ", getRank(), " has left the group, because its interpreter ends");
}

c10::intrusive_ptr<ProcessGroup> ProcessGroup::duplicate() {
  const std::lock_guard turn(turn_);
  drain();
  return c10::make_intrusive<ProcessGroup>(comm_->communicator->duplicate(), options_);
}

std::string ProcessGroup::explain(int64_t bytes) {
  const std::lock_guard turn(turn_);
  drain();
  return comm_->allreduce->for_bytes(bytes).describe(std::max<int64_t>(bytes / 4, 1));
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroup::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), comm_->communicator->deadline());
}

void ProcessGroup::setTimeout(std::chrono::milliseconds timeout) {
  require_usable();
  comm_->communicator->set_deadline(timeout);
  messages_->set_deadline(timeout);
}

std::vector<std::shared_ptr<void>> ProcessGroup::hold(const Tensors& tensors, bool written) const {
  std::vector<std::shared_ptr<void>> held;
  if (!options_.hold) return held;
  for (const at::Tensor& tensor : tensors) held.push_back(options_.hold(tensor, written));
  return held;
}

template <class Check>
auto ProcessGroup::checked(const Check& check) {
  require_usable();
  try {
    return check();
  } catch (const std::exception&) {
    const std::lock_guard turn(turn_);
    (void)queue_->submit([](Communicator& comm) { (void)comm.next_sequence(); });
    throw;
  }
}

WorkHandle ProcessGroup::submit(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs, Job job) {
  checked([&] {
    refuse_sparse(inputs, title);
    refuse_sparse(outputs, title);
    refuse_overlap(outputs);
  });
  ++sequence_;
  const bool blocks = must_block();
  const bool runs_here = blocks || any_on_gpu(inputs) || any_on_gpu(outputs);
  // Inside a Session the operator itself keeps its arguments where they are, until it returns.
  std::vector<std::shared_ptr<void>> held;
  if (!runs_here) {
    held = hold(outputs, /*written=*/true);
    auto read = hold(inputs, /*written=*/false);
    std::move(read.begin(), read.end(), std::back_inserter(held));
  }
  auto work = c10::make_intrusive<CollectiveWork>(getRank(), type, title, inputs, std::move(outputs), *callbacks_);
  const std::lock_guard turn(turn_);
  if (!runs_here) {
    // The tensors live until the job ends, because it holds them.
    (void)queue_->submit(
        [this, work, job = std::move(job), held = std::move(held)](Communicator&) { run(job, *work); });
    return work;
  }
  // On this thread, so that the memory that it takes is the operator's own, which a Session's floor counts.
  drain();
  run(job, *work);
  if (blocks && work->exception()) std::rethrow_exception(work->exception());
  return work;
}

void ProcessGroup::run(const Job& job, CollectiveWork& work) {
  Communicator& comm = *comm_->communicator;
  const int64_t before = comm.messages_started();
  std::exception_ptr failure;
  // Callers in inference mode give tensors that may only be written in that mode, and others may be as well.
  const c10::InferenceMode inference;
  try {
    job(comm_);
  } catch (const CommError&) {
    failure = std::current_exception();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    // Once a message has started, its memory is about to be freed, and the other ranks wait for the rest.
    if (comm.messages_started() != before) comm.abandon(error.what());
  }
  complete(work, failure);
}

void ProcessGroup::complete(CollectiveWork& work, const std::exception_ptr& error) const {
  work.complete(error && options_.translate_error ? options_.translate_error(error) : error);
}

void ProcessGroup::drain() {
  require_usable();
  queue_->submit([](Communicator&) {}).wait();
}

WorkHandle ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const int root = checked([&] { return checked_root(options.rootRank, getSize(), "broadcast"); });
  return submit(c10d::OpType::BROADCAST, "spillway:broadcast", tensors, tensors,
                [tensors, root](const Comm& comm) { broadcast_from(tensors, comm, root); });
}

WorkHandle ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Reduction reduction = checked([&] { return reduction_of_c10d(options.reduceOp); });
  return submit(c10d::OpType::ALLREDUCE, "spillway:all_reduce", tensors, tensors,
                [tensors, reduction](const Comm& comm) { reduce_on_all(tensors, comm, reduction); });
}

WorkHandle ProcessGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

WorkHandle ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Reduction reduction = checked([&] { return reduction_of_c10d(options.reduceOp); });
  const int root = checked([&] { return checked_root(options.rootRank, getSize(), "reduce"); });
  return submit(c10d::OpType::REDUCE, "spillway:reduce", tensors, tensors,
                [tensors, root, reduction](const Comm& comm) {
                  for (const at::Tensor& tensor : tensors) reduce_on_root(tensor, comm, root, reduction);
                });
}

WorkHandle ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  const at::Tensor input = only(inputs, "all_gather");
  const Tensors all = only(outputs, "all_gather");
  return submit(c10d::OpType::ALLGATHER, "spillway:all_gather", inputs, all,
                [all, input](const Comm& comm) { gather_on_all(all, input, comm); });
}

WorkHandle ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  return submit(c10d::OpType::_ALLGATHER_BASE, "spillway:all_gather_into_tensor", {input}, {output},
                [output, input](const Comm& comm) { gather_on_all(output, input, comm); });
}

WorkHandle ProcessGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions&) {
  TORCH_CHECK(outputs.size() == inputs.size(), "[ddl] all_gather: ", outputs.size(), " outputs, ", inputs.size(),
              " inputs");
  return submit(c10d::OpType::COALESCED, "spillway:all_gather_into_tensor", inputs, outputs,
                [outputs, inputs](const Comm& comm) {
                  for (size_t i = 0; i < outputs.size(); ++i) gather_on_all(outputs[i], inputs[i], comm);
                });
}

WorkHandle ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const int root = checked([&] { return checked_root(options.rootRank, getSize(), "gather"); });
  const at::Tensor input = only(inputs, "gather");
  const Tensors all = getRank() == root ? only(outputs, "gather") : Tensors();
  return submit(c10d::OpType::GATHER, "spillway:gather", inputs, all,
                [all, input, root](const Comm& comm) { gather_on_root(all, input, comm, root); });
}

WorkHandle ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const int root = checked([&] { return checked_root(options.rootRank, getSize(), "scatter"); });
  const at::Tensor output = only(outputs, "scatter");
  const Tensors all = getRank() == root ? only(inputs, "scatter") : Tensors();
  return submit(c10d::OpType::SCATTER, "spillway:scatter", all, outputs,
                [output, all, root](const Comm& comm) { scatter_from(output, all, comm, root); });
}

WorkHandle ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  const Reduction reduction = checked([&] { return reduction_of_c10d(options.reduceOp); });
  const at::Tensor output = only(outputs, "reduce_scatter");
  const Tensors all = only(inputs, "reduce_scatter");
  return submit(c10d::OpType::REDUCE_SCATTER, "spillway:reduce_scatter", all, outputs,
                [output, all, reduction](const Comm& comm) { reduce_parts(output, all, comm, reduction); });
}

WorkHandle ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  const Reduction reduction = checked([&] { return reduction_of_c10d(options.reduceOp); });
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, "spillway:reduce_scatter_tensor", {input}, {output},
                [output, input, reduction](const Comm& comm) { reduce_parts(output, input, comm, reduction); });
}

WorkHandle ProcessGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "[ddl] reduce_scatter: ", outputs.size(), " outputs, ", inputs.size(),
              " inputs");
  const Reduction reduction = checked([&] { return reduction_of_c10d(options.reduceOp); });
  return submit(c10d::OpType::COALESCED, "spillway:reduce_scatter_tensor", inputs, outputs,
                [outputs, inputs, reduction](const Comm& comm) {
                  for (size_t i = 0; i < outputs.size(); ++i) reduce_parts(outputs[i], inputs[i], comm, reduction);
                });
}

WorkHandle ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                       std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions&) {
  const auto [to, from] =
      checked([&] { return std::pair(cut(input, input_sizes, getSize()), cut(output, output_sizes, getSize())); });
  return submit(c10d::OpType::ALLTOALL_BASE, "spillway:all_to_all_single", {input}, {output},
                [to = to, from = from](const Comm& comm) { exchange(from, to, comm); });
}

WorkHandle ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  return submit(c10d::OpType::ALLTOALL, "spillway:all_to_all", inputs, outputs,
                [outputs, inputs](const Comm& comm) { exchange(outputs, inputs, comm); });
}

WorkHandle ProcessGroup::send(Tensors& tensors, int peer, int tag) {
  require_usable();
  checked_root(peer, getSize(), "send");
  refuse_sparse(tensors, "send");
  const at::Tensor tensor = only(tensors, "send");
  at::Tensor bytes = on_host(tensor);
  if (must_block() && bytes.is_alias_of(tensor)) bytes = bytes.clone();
  auto held = hold({bytes}, /*written=*/false);
  auto work =
      c10::make_intrusive<MessageWork>(getRank(), c10d::OpType::SEND, "spillway:send", tensors, Tensors(), *callbacks_);
  messages_->send(
      peer, tag, bytes_of(bytes), work->waiting(),
      [this, work, bytes, held = std::move(held)](const std::exception_ptr& error) { complete(*work, error); });
  return work;
}

WorkHandle ProcessGroup::recv(Tensors& tensors, int peer, int tag) {
  require_usable();
  checked_root(peer, getSize(), "recv");
  refuse_sparse(tensors, "recv");
  const at::Tensor tensor = only(tensors, "recv");
  refuse_overlap(tensors);
  at::Tensor bytes = must_block() ? host_memory_like(tensor) : host_buffer(tensor);
  auto held = hold({bytes}, /*written=*/true);
  auto work =
      c10::make_intrusive<MessageWork>(getRank(), c10d::OpType::RECV, "spillway:recv", Tensors(), tensors, *callbacks_);
  if (!bytes.is_same(tensor))
    work->deliver_to_waiter([tensor, bytes] {
      const c10::InferenceMode inference;
      tensor.copy_(bytes);
    });
  messages_->receive(
      peer, tag, bytes_of(bytes), work->waiting(),
      [this, work, bytes, held = std::move(held)](const std::exception_ptr& error) { complete(*work, error); });
  return work;
}

WorkHandle ProcessGroup::barrier(const c10d::BarrierOptions&) {
  return submit(c10d::OpType::BARRIER, "spillway:barrier", {}, {},
                [](const Comm& comm) { ddl::barrier(*comm->communicator); });
}

void ProcessGroup::shutdown() {
  if (getpid() != process_ || !queue_) return;
  const Ticket last = queue_->submit([](Communicator&) {});
  const auto end = Clock::now() + kShutdownGrace;
  while (!last.done() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!last.done()) queue_->give_up("ended its group with collectives under way");
  try {
    last.wait();
  } catch (const CommError&) {  // the group has ended, and the works that failed have said so
  }
}

void ProcessGroup::abort() {
  if (getpid() == process_ && queue_) queue_->give_up("was aborted");
}

void ProcessGroup::leave() {
  if (getpid() != process_) return;
  queue_.reset();
  messages_.reset();
}

}  // namespace spillway::ddl
