/// Recipes of tensors: how the operators that made one were called.
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
#include "swap/pager/recipe_source.h"
#include "swap/windows/window_rules.h"

namespace spillway {

/// A strided tensor without its bytes, and where they are to be had.
struct TensorForm {
  struct Self {};                                       ///< the tensor that is being made
  std::variant<Self, PageId, std::vector<char>> bytes;  ///< a page's, or a small storage's own
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
    std::vector<TensorForm> forms;  ///< one, or those of a list
    bool is_list;
  };
  struct Call {
    c10::OperatorHandle op;
    c10::DispatchKeySet keys;
    torch::jit::Stack stack;  ///< arguments; tensors are undefined here
    std::vector<Argument> tensors;
    WindowRule windows;   ///< how it is split as it was then; nullptr: it ran whole
    int32_t result = -1;  ///< which of the results is the tensor; -1: it is an argument, written in place
    int threads = 1;      ///< sums may be taken thread by thread
  };
  void run_call(Call& call, Pager& pager, at::Tensor& self);

  int64_t split_bytes_ = kUnlimitedBytes;
  std::vector<Input> inputs_;
  uint64_t write_epoch_ = 0;
  std::vector<Call> calls_;
};

/// The calls of the open step that make what the schedule replays.
class OperatorRecipes final : public RecipeSource {
 public:
  OperatorRecipes(Pager& pager, int64_t split_bytes) : pager_(pager), split_bytes_(split_bytes) {}
  /// Before the kernel, its arguments on the stack, resident or to be streamed. `self` is the slot's page; 0 while it
  /// is yet to be made. `windows` is the rule by which this call is split, if it is. The recipe is given up when the
  /// call cannot be run again, writes anything but `self`, or finds that somebody else wrote `self` or may be.
  void note_call(int32_t slot, PageId self, const OperatorTraits& traits, const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys, const torch::jit::Stack& stack, WindowRule windows);
  /// After the kernel, its results on the stack and registered, its leases ended.
  void note_result(int32_t slot, PageId self, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  void clear() noexcept override { open_.clear(); }
  std::unique_ptr<ReplayRecipe> take(int32_t slot) override;

 private:
  bool add_call(OperatorRecipe& recipe, PageId self, const OperatorTraits& traits, OperatorRecipe::Call call,
                const torch::jit::Stack& stack);

  Pager& pager_;
  const int64_t split_bytes_;
  /// nullptr for a recipe that could not be kept whole.
  std::unordered_map<int32_t, std::unique_ptr<OperatorRecipe>> open_;
};

}  // namespace spillway
