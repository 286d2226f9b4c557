/// One operator that runs in windows: where its windows come from and where its results go.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "swap/conductor/conductor.h"
#include "swap/session.h"
#include "swap/windows/window_rules.h"

namespace spillway {

/// Keeps a page where it is while it lives: resident, or absent with its host copy in place.
class PagePin {
 public:
  /// Throws as Pager::pin does.
  PagePin(Pager& pager, Page* page, bool write, UserId user)
      : pager_(pager), use_{.page = page, .write = write}, resident_(pager.pin(use_, user)) {}
  PagePin(const PagePin&) = delete;
  PagePin& operator=(const PagePin&) = delete;
  ~PagePin() { pager_.unpin(use_, resident_); }
  bool resident() const { return resident_; }

 private:
  Pager& pager_;
  const PageUse use_;
  const bool resident_;
};

/// `size` elements (planes, channels, …) from `begin` on.
struct Range {
  int64_t begin;
  int64_t size;
};
/// 0 … total in steps; the last range is what is left.
std::vector<Range> ranges(int64_t total, int64_t step);

/// For operators that look at an argument's shape alone: addresses without memory behind them, which read as zero; on a
/// card, where there are no such, memory. Throws std::system_error where there are not so many addresses, OutOfBudget.
at::Tensor shape_alone(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device);
/// The same, dense, its elements in the order of the part's.
at::Tensor shape_alone(const at::Tensor& part);
/// The same, contiguous in `format`.
at::Tensor shape_alone(at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type, c10::Device device);

/// Gives a plan its windows. A window of a resident page is a view where its bytes are one run, else a copy; a window
/// of an absent page is copied from the host. When views keep so much resident that a window does not fit, the rest of
/// the operator uses copies only, which need no page resident: own_bytes() counts that need, whatever was resident now.
class WindowCall {
 public:
  /// `streamed`: the pages of the tensors that are used in windows; they outlive the call.
  WindowCall(Session::State* session, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
             OperatorArguments arguments, std::span<const PageUse> streamed);
  ~WindowCall();
  WindowCall(const WindowCall&) = delete;
  WindowCall& operator=(const WindowCall&) = delete;

  /// Runs the plan, once. What it throws after the operator wrote a window of its arguments says that.
  std::vector<at::Tensor> run(WindowPlan& plan);

  OperatorArguments arguments() const { return arguments_; }

  /// Runs `compute`, which takes windows and returns what it made of them, as often as it takes to fit: at most twice.
  /// Windows live until it returns. It must write nothing but windows it took by update() or replace().
  template <class Compute>
  auto attempt(Compute&& compute) {
    begin_attempt();
    for (;;) {
      try {
        auto result = compute();
        finish_attempt();
        return result;
      } catch (const OutOfBudget&) {
        if (!fall_back_to_copies()) throw;
      }
    }
  }

  // Inside attempt(): windows of `part`, which is a view of a large tensor.
  at::Tensor read(const at::Tensor& part) { return take(part, Access::read); }
  /// Read, and written back.
  at::Tensor update(const at::Tensor& part) { return take(part, Access::update); }
  /// Undefined, and written back.
  at::Tensor replace(const at::Tensor& part) { return take(part, Access::replace); }
  /// Copies a part into a tensor of the same shape.
  void fill(const at::Tensor& destination, const at::Tensor& part);
  /// Runs the operator's own kernel on windows.
  std::vector<at::Tensor> kernel(std::vector<c10::IValue> arguments);
  /// The same, its results into tensors of their sizes and types, taken by replace(): saves the copy that write() is.
  /// Only where can_write_results().
  void kernel_into(std::vector<c10::IValue> arguments, const std::vector<at::Tensor>& results);
  bool can_write_results() const { return out_op_.has_value(); }

  // Between attempts.

  /// Makes result number `index`, resident where there is room, else on the host. To be filled by write().
  at::Tensor output(int32_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type);
  /// The same, contiguous in `format`.
  at::Tensor output(int32_t index, at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type);
  /// Copies a tensor of the same shape into `part`.
  void write(const at::Tensor& part, const at::Tensor& value);

  /// Workspace and windows at their largest, as if no page had been resident.
  int64_t own_bytes();
  /// The large results that were made.
  std::span<const Birth> births() const { return births_; }

 private:
  enum class Access : uint8_t { read, update, replace };
  struct Window {
    at::Tensor part, tensor;
    Access access;
    bool viewed = false;
    std::unique_ptr<PagePin> pin = nullptr;  ///< of a view
  };

  at::Tensor take(const at::Tensor& part, Access access);
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  bool view(Window& window);
  void begin_attempt();
  void finish_attempt();
  bool fall_back_to_copies();
  bool has_written() const;
  void note_need(int64_t viewed_bytes);

  Page* page_of(const at::Tensor& tensor) const;
  void admit_pages();

  Session::State* const session_;
  const c10::Device device_;
  const c10::OperatorHandle& op_;
  const std::optional<c10::OperatorHandle> out_op_;
  const c10::DispatchKeySet keys_;
  const OperatorArguments arguments_;
  const std::span<const PageUse> streamed_;
  std::vector<Window> windows_;
  std::vector<Birth> births_;
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const bool counting_;
  bool copies_only_ = false;
  bool computed_ = false;  ///< a window, whose results are being written or were
  int64_t workspace_at_start_;
  int64_t workspace_at_mark_;
  int64_t own_bytes_ = 0;
};

}  // namespace spillway
