/// One operator of a Session that runs in windows of pages.
#pragma once
#include <span>
#include <vector>

#include "swap/conductor/conductor.h"
#include "swap/pager/pager.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {

class SessionState;

/// A call whose windows come from pages. A window of a resident page is a view where its bytes are one run, else a
/// copy. A window of an absent page is copied from the host. When views keep so much resident that a window does not
/// fit, the rest of the operator uses copies only, which need no page resident. own_bytes() counts the need of copies,
/// whatever was resident.
class SessionWindowCall final : public WindowCall {
 public:
  /// Makes the call. `streamed` holds the pages of the tensors that are used in windows; they outlive the call.
  SessionWindowCall(SessionState& session, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    OperatorArguments arguments, std::span<const PageUse> streamed);

  /// Runs the plan, once. An error that it throws after the operator wrote a window of its arguments says so.
  std::vector<at::Tensor> run(WindowPlan& plan);

  void fill(const at::Tensor& destination, const at::Tensor& part) override;
  using WindowCall::output;
  /// Makes a result, resident where there is room, else on the host.
  at::Tensor output(int32_t index, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) override;
  void write(const at::Tensor& part, const at::Tensor& value) override;

  /// Returns the maximum of workspace and windows, as if no page had been resident.
  int64_t own_bytes();
  /// Returns the large results that were made.
  std::span<const Birth> births() const { return births_; }

 private:
  bool view(Window& window) override;
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  void begin_attempt() override;
  void finish_attempt() override;
  bool can_use_less() override;

  bool has_written() const;
  void record_need(int64_t viewed_bytes);
  Page* page_of(const at::Tensor& tensor) const;
  void admit_pages();

  SessionState& session_;
  const std::span<const PageUse> streamed_;
  std::vector<Birth> births_;
  const bool is_measured_;
  bool copies_only_ = false;
  bool computed_ = false;  ///< true once a window was computed: its results are being written, or were
  int64_t workspace_at_start_;
  int64_t workspace_at_mark_;
  int64_t own_bytes_ = 0;
};

}  // namespace spillway::swap
