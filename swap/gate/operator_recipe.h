/// Recipes of tensors: the operator calls that made them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <unordered_map>
#include <variant>
#include <vector>

#include "swap/gate/operator_traits.h"
#include "swap/pager/pager.h"
#include "swap/pager/replay_recipe.h"
#include "swap/windows/window_rules.h"

namespace spillway::swap {

/// A strided tensor without its bytes, and the place where the bytes can be found.
struct TensorSpec {
  struct Self {};                                       ///< the tensor that is being made
  std::variant<Self, PageId, std::vector<char>> bytes;  ///< a page's bytes, or a small storage's own
  c10::Device device;
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  ///< elements
  bool wrapped_number = false;
};

/// Runs the noted operators again, one after another, below autograd and the gate.
class OperatorRecipe final : public ReplayRecipe {
 public:
  const std::vector<Input>& inputs() const override { return inputs_; }
  uint64_t write_epoch() const override { return write_epoch_; }
  Block* run(Pager& pager) override;

 private:
  friend class OperatorRecipes;
  struct Argument {
    size_t position;
    std::vector<TensorSpec> forms;  ///< one tensor, or the tensors of a list
    bool is_list;
  };
  struct Call {
    c10::OperatorHandle op;
    c10::DispatchKeySet keys;
    torch::jit::Stack stack;  ///< arguments; tensors are undefined here
    std::vector<Argument> tensors;
    WindowRule windows;   ///< the rule that split the call; nullptr: it ran whole
    int32_t result = -1;  ///< the result that is the tensor; -1: it is an argument, written in place
    int threads = 1;      ///< threads of the call, because sums may be taken thread by thread
  };
  void run_call(Call& call, Pager& pager, at::Tensor& self);

  int64_t split_bytes_ = kUnlimitedBytes;
  std::vector<Input> inputs_;
  uint64_t write_epoch_ = 0;
  std::vector<Call> calls_;
};

/// The calls of the open step that make the slots that the schedule replays.
class OperatorRecipes final : public RecipeSource {
 public:
  OperatorRecipes(Pager& pager, int64_t split_bytes) : pager_(pager), split_bytes_(split_bytes) {}
  /// Records a call before its kernel, its arguments on the stack, resident or to be streamed. `self` is the slot's
  /// page; 0 while it is yet to be made. `windows` is the rule by which this call is split, if it is. The recipe is
  /// given up when the call cannot be run again, or writes anything but `self`. It is given up too when another call
  /// wrote `self`, or may be writing it.
  void record_call(int32_t slot, PageId self, const OperatorTraits& traits, const c10::OperatorHandle& op,
                   c10::DispatchKeySet keys, const torch::jit::Stack& stack, WindowRule windows);
  /// Records a call's result after its kernel: the results are on the stack and registered, and the leases have ended.
  void record_result(int32_t slot, PageId self, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  void clear() noexcept override { open_.clear(); }
  std::unique_ptr<ReplayRecipe> take(int32_t slot) override;

 private:
  bool add_call(OperatorRecipe& recipe, PageId self, const OperatorTraits& traits, OperatorRecipe::Call call,
                const torch::jit::Stack& stack);

  Pager& pager_;
  const int64_t split_bytes_;
  /// Recipes by slot; nullptr for a recipe that could not be kept whole.
  std::unordered_map<int32_t, std::unique_ptr<OperatorRecipe>> open_;
};

}  // namespace spillway::swap
