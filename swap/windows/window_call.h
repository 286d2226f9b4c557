/// One operator that runs in windows: where its windows come from and where its results go.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "swap/windows/window_rules.h"

namespace spillway::swap {

/// A range of `size` elements (planes, channels, …) from `begin` on.
struct Range {
  int64_t begin;
  int64_t size;
};
/// Returns the ranges of 0 … total in steps; the last range is the remainder.
std::vector<Range> ranges(int64_t total, int64_t step);

/// Gives a plan its windows. Here all tensors are resident and not paged, as in a replay: a window is a view where its
/// bytes are one run, else a copy. SessionWindowCall takes windows from pages.
class WindowCall {
 public:
  WindowCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, OperatorArguments arguments);
  virtual ~WindowCall();
  WindowCall(const WindowCall&) = delete;
  WindowCall& operator=(const WindowCall&) = delete;

  OperatorArguments arguments() const { return arguments_; }

  /// Runs `compute`, which takes windows and returns its results, as often as it takes to fit: at most twice. Windows
  /// live until the call returns. `compute` must write nothing but windows it took by update() or replace().
  template <class Compute>
  auto attempt(Compute&& compute) {
    begin_attempt();
    for (;;) {
      try {
        auto result = compute();
        finish_attempt();
        return result;
      } catch (const OutOfBudget&) {
        if (!can_use_less()) throw;
      }
    }
  }

  // Inside attempt(): windows of `part`, which is a view of a large tensor.
  at::Tensor read(const at::Tensor& part) { return take(part, Access::read); }
  /// Takes a window that is read, and written back.
  at::Tensor update(const at::Tensor& part) { return take(part, Access::update); }
  /// Takes a window that is undefined, and written back.
  at::Tensor replace(const at::Tensor& part) { return take(part, Access::replace); }
  /// Copies a part into a tensor of the same shape.
  virtual void fill(const at::Tensor& destination, const at::Tensor& part);
  /// Runs the operator's own kernel on windows.
  std::vector<at::Tensor> kernel(std::vector<c10::IValue> arguments);
  /// Runs the kernel that fills its results, which are of their sizes and types and were taken by replace(). That saves
  /// the copy that write() is. Allowed only where can_write_results().
  void kernel_into(std::vector<c10::IValue> arguments, const std::vector<at::Tensor>& results);
  bool can_write_results() const { return out_op_.has_value(); }

  // Between attempts.

  /// Makes result number `index`, to be filled by write().
  virtual at::Tensor output(int32_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type);
  /// Makes result number `index`, contiguous in `format`.
  at::Tensor output(int32_t index, at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type);
  /// Copies a tensor of the same shape into `part`.
  virtual void write(const at::Tensor& part, const at::Tensor& value);

 protected:
  enum class Access : uint8_t { read, update, replace };
  struct Window {
    at::Tensor part, tensor;
    Access access;
    bool is_view = false;
    std::shared_ptr<void> pin = nullptr;  ///< keeps a page's own bytes where they are
  };

  c10::Device device() const { return device_; }
  const c10::OperatorHandle& op() const { return op_; }
  c10::DispatchKeySet keys() const { return keys_; }
  const std::vector<Window>& windows() const { return windows_; }
  void drop_windows() { windows_.clear(); }

  /// Makes the window, of one run of bytes, the part's own memory. Returns false when it must be a copy.
  virtual bool view(Window& window);
  virtual void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  virtual void begin_attempt() {}
  /// Writes back the windows that were not written in place, and drops every window.
  virtual void finish_attempt();
  /// Returns true when another attempt will need less. Called after the budget ran out.
  virtual bool can_use_less() { return false; }

 private:
  at::Tensor take(const at::Tensor& part, Access access);

  const c10::Device device_;
  const c10::OperatorHandle& op_;
  const std::optional<c10::OperatorHandle> out_op_;
  const c10::DispatchKeySet keys_;
  const OperatorArguments arguments_;
  std::vector<Window> windows_;
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace spillway::swap
