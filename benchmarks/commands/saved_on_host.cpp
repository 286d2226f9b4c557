#include "benchmarks/commands/saved_on_host.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace spillway::tools {
namespace {

using torch::autograd::SavedVariableHooks;

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(tensor.is_cuda()));
}

/// Copies in the order of the GPU's operators, so that nothing overlaps with them.
class InOrder final : public SavedVariableHooks {
 public:
  explicit InOrder(bool non_blocking) : non_blocking_(non_blocking) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    at::NoGradGuard no_grad;
    device_ = tensor.device();
    packed_ = pinned_like(tensor);
    packed_.copy_(tensor, non_blocking_);
  }
  at::Tensor call_unpack_hook() override {
    return device_.is_cuda() ? packed_.to(device_, packed_.scalar_type(), /*non_blocking=*/true) : packed_;
  }

 private:
  const bool non_blocking_;
  c10::Device device_{c10::kCPU};
  at::Tensor packed_;
};

constexpr int64_t kSmallestCopied = 64 << 10;

c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

/// One saved tensor, which leaves on one stream and comes back on another. Thread: one at a time.
class Traveller {
 public:
  Traveller(const at::Tensor& tensor, std::weak_ptr<Traveller> before)
      : lanes_(Lanes::of(tensor.device())), before_(std::move(before)), on_host_(pinned_like(tensor)) {
    const c10::Stream compute = lanes_.guard.getStream(tensor.device());
    event_on(compute).block(lanes_.out);
    {
      const c10::StreamGuard out(lanes_.out);
      on_host_.copy_(tensor, /*non_blocking=*/true);
    }
    tensor.record_stream(lanes_.out);  // its memory is used there until the copy is done
    left_.emplace(event_on(lanes_.out));
  }

  /// Starts the copy back, unless it has begun.
  void fetch() {
    if (on_gpu_.defined()) return;
    const c10::StreamGuard in(lanes_.in);
    left_->block(lanes_.in);
    on_gpu_ = on_host_.to(lanes_.in.device(), on_host_.scalar_type(), /*non_blocking=*/true);
    came_.emplace(event_on(lanes_.in));
  }

  /// Returns the tensor, for the operators that follow on this thread's stream.
  at::Tensor take() {
    fetch();
    const c10::Stream compute = lanes_.guard.getStream(lanes_.in.device());
    came_->block(compute);
    on_gpu_.record_stream(compute);
    if (const auto before = before_.lock()) before->fetch();
    return std::exchange(on_gpu_, at::Tensor());
  }

 private:
  struct Lanes {
    c10::impl::VirtualGuardImpl guard;
    c10::Stream out, in;
    static const Lanes& of(c10::Device device) {
      static const c10::impl::VirtualGuardImpl guard(device.type());
      static const Lanes lanes{guard, guard.getStreamFromGlobalPool(device), guard.getStreamFromGlobalPool(device)};
      return lanes;
    }
  };
  const Lanes& lanes_;
  const std::weak_ptr<Traveller> before_;
  at::Tensor on_host_, on_gpu_;
  std::optional<c10::Event> left_, came_;
};

class OneAhead final : public SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    at::NoGradGuard no_grad;
    const bool is_parameter = tensor.is_leaf() && tensor.requires_grad();
    if (!tensor.is_cuda() || is_parameter || static_cast<int64_t>(tensor.nbytes()) < kSmallestCopied) {
      kept_ = tensor.detach();
      return;
    }
    const std::lock_guard lock(mutex);
    traveller_ = std::make_shared<Traveller>(tensor, last);
    last = traveller_;
  }
  at::Tensor call_unpack_hook() override {
    if (kept_.defined()) return kept_;
    const std::lock_guard lock(mutex);
    return traveller_->take();
  }

 private:
  static inline std::mutex mutex;
  static inline std::weak_ptr<Traveller> last;
  at::Tensor kept_;
  std::shared_ptr<Traveller> traveller_;
};

std::atomic<bool> saving = false;
std::atomic<HostCopies> way = HostCopies::blocking;

/// An autograd engine that saves tensors on the host, because LibTorch asks its engine how tensors are to be saved.
class SavingEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new SavingEngine();
    return *engine;
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!saving) return nullptr;
    if (way == HostCopies::one_ahead) return std::make_unique<OneAhead>();
    return std::make_unique<InOrder>(way == HostCopies::non_blocking);
  }
};

}  // namespace

SavedOnHost::SavedOnHost(HostCopies copies) {
  torch::autograd::set_default_engine_stub(&SavingEngine::instance);
  way = copies;
  saving = true;
}

SavedOnHost::~SavedOnHost() {
  saving = false;
}

}  // namespace spillway::tools
