#include "tools/bench/saved_on_host.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <memory>
#include <utility>

namespace spillway::tools {
namespace {

class HostCopyHooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    at::NoGradGuard no_grad;
    device_ = tensor.device();
    packed_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(device_.is_cuda()));
    packed_.copy_(tensor);
  }
  at::Tensor call_unpack_hook() override {
    return device_.is_cuda() ? packed_.to(device_, packed_.scalar_type(), /*non_blocking=*/true) : packed_;
  }

 private:
  c10::Device device_{c10::kCPU};
  at::Tensor packed_;
};

std::atomic<bool> saving = false;

/// An autograd engine that saves tensors on the host, because LibTorch asks its engine how tensors are to be saved.
class SavingEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new SavingEngine();
    return *engine;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saving ? std::make_unique<HostCopyHooks>() : nullptr;
  }
};

}  // namespace

SavedOnHost::SavedOnHost() {
  torch::autograd::set_default_engine_stub(&SavingEngine::instance);
  saving = true;
}

SavedOnHost::~SavedOnHost() {
  saving = false;
}

}  // namespace spillway::tools
