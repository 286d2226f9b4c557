/// The end of a step in its midst.
#pragma once
#include "core/interrupted.h"
#include "runtime/interruption/train_requests.h"
#include "swap/gate/operator_observer.h"

namespace spillway::runtime {

/// An observer that throws Interrupted before the next operator when a stop is requested, while one of its Scopes
/// lives. It tells another observer of every operator. Costs a flag per operator.
class Interrupter final : public OperatorObserver {
 public:
  /// `requests` and `next` may be null, and must outlive this object.
  Interrupter(const TrainRequests* requests, OperatorObserver* next) : requests_(requests), next_(next) {}

  /// A part of a step that may be left before any operator. Scopes are made and ended on the Session's thread, one at a
  /// time.
  class Scope {
   public:
    explicit Scope(Interrupter& interrupter) : interrupter_(interrupter) { interrupter_.interruptible_ = true; }
    ~Scope() { interrupter_.interruptible_ = false; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupter& interrupter_;
  };

  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override {
    if (interruptible_ && requests_ && requests_->stop) throw Interrupted("[train] the step was left on request");
    if (next_) next_->before(op, stack);
  }
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override {
    if (next_) next_->after(op, stack);
  }
  void released(swap::Pager& pager) override {
    if (next_) next_->released(pager);
  }

 private:
  const TrainRequests* const requests_;
  OperatorObserver* const next_;
  bool interruptible_ = false;
};

}  // namespace spillway::runtime
