// Batch norm and group norm: each channel, or group of channels, is computed on its own.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <initializer_list>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {
namespace {

/// The way in which an argument or a result follows the channels. Group statistics are [samples, groups].
enum class Follows : uint8_t { nothing, activations, channels, groups };
using enum Follows;

struct NormOperator {
  std::string_view name;
  std::array<Follows, 7> arguments;
  std::array<Follows, 3> results;
  int channel_count = -1;  ///< argument with the number of channels
  int group_count = -1;    ///< argument with the number of groups; -1: each channel is one
  size_t running = 8;      ///< argument that is updated, and the next one too
  bool updates(size_t a) const { return a == running || a == running + 1; }
};
constexpr std::array<NormOperator, 4> kNorms{{
    {.name = "aten::native_batch_norm",
     .arguments = {activations, channels, channels, channels, channels},
     .results = {activations, channels, channels},
     .running = 3},
    {.name = "aten::native_batch_norm_backward",
     .arguments = {activations, activations, channels, channels, channels, channels, channels},
     .results = {activations, channels, channels}},
    {.name = "aten::native_group_norm",
     .arguments = {activations, channels, channels},
     .results = {activations, groups, groups},
     .channel_count = 4,
     .group_count = 6},
    {.name = "aten::native_group_norm_backward",
     .arguments = {activations, activations, groups, groups, channels},
     .results = {activations, channels, channels},
     .channel_count = 6,
     .group_count = 8},
}};

class NormPlan final : public WindowPlan {
 public:
  NormPlan(const NormOperator& kind, at::Tensor model, int64_t groups, int64_t step, size_t arguments)
      : kind_(kind), model_(std::move(model)), groups_(groups), step_(step) {
    argument_uses.assign(arguments, ArgumentUse::whole);
    for (size_t a = 0; a < kind.arguments.size() && a < arguments; ++a)
      if (kind.arguments[a] == Follows::activations) argument_uses[a] = ArgumentUse::windows;
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results(3);
    for (const Range& range : ranges(groups_, step_)) {
      std::vector<at::Tensor> statistics;
      const bool in_place = call.can_write_results() && results[0].defined();
      const std::vector<at::Tensor> windows = call.attempt([&] {
        if (!in_place) return call.kernel(arguments(call, range, statistics));
        std::vector<at::Tensor> places = places_for(call, results, range);
        call.kernel_into(arguments(call, range, statistics), places);
        return places;
      });
      for (size_t i = 0; i < statistics.size(); i += 2) statistics[i].copy_(statistics[i + 1]);
      for (size_t r = 0; r < results.size(); ++r) {
        if (!windows[r].defined()) continue;
        const bool large = kind_.results[r] == Follows::activations;
        if (large && in_place) continue;
        if (!results[r].defined())
          results[r] = large ? call.output(r, model_.sizes(), at::MemoryFormat::Contiguous, windows[r].scalar_type())
                             : make_small(r, windows[r]);
        if (large)
          call.write(part(results[r], kind_.results[r], range), windows[r]);
        else if (results[r].numel() > 0)
          part(results[r], kind_.results[r], range).copy_(windows[r]);
      }
    }
    return results;
  }

 private:
  int64_t channels_per_group() const { return model_.size(1) / groups_; }

  at::Tensor part(const at::Tensor& whole, Follows follows, const Range& range) const {
    const int64_t k = channels_per_group();
    if (follows == Follows::activations) return whole.narrow(1, range.begin * k, range.size * k);
    if (follows == Follows::groups) return whole.narrow(1, range.begin, range.size);
    return whole.narrow(0, range.begin * k, range.size * k);
  }

  /// Returns the places that the kernel writes its results to: the large one's window, and small ones that are copied
  /// from.
  std::vector<at::Tensor> places_for(WindowCall& call, const std::vector<at::Tensor>& results,
                                     const Range& range) const {
    std::vector<at::Tensor> places;
    for (size_t r = 0; r < results.size(); ++r) {
      const bool empty = results[r].numel() == 0;
      const at::Tensor box = empty ? results[r] : part(results[r], kind_.results[r], range);
      places.push_back(kind_.results[r] == Follows::activations ? call.replace(box)
                                                                : at::empty(box.sizes(), box.options()));
    }
    return places;
  }

  /// Returns the arguments of a window. `statistics` gets each running statistic and the copy of it that the kernel
  /// updates, because an attempt that runs out must not have updated them.
  std::vector<c10::IValue> arguments(WindowCall& call, const Range& range, std::vector<at::Tensor>& statistics) const {
    std::vector<c10::IValue> window = call.arguments().vec();
    statistics.clear();
    for (size_t a = 0; a < kind_.arguments.size() && a < window.size(); ++a) {
      const Follows follows = kind_.arguments[a];
      if (follows == Follows::nothing) continue;
      const at::Tensor whole = tensor_or_undefined(window[a]);
      if (!whole.defined() || whole.numel() == 0) continue;
      const at::Tensor box = part(whole, follows, range);
      // The kernels assume that group statistics are contiguous.
      window[a] = follows == Follows::activations ? call.read(box) : box.contiguous();
      if (!kind_.updates(a)) continue;
      statistics.insert(statistics.end(), {box, box.clone()});
      window[a] = statistics.back();
    }
    if (kind_.channel_count >= 0) window[kind_.channel_count] = range.size * channels_per_group();
    if (kind_.group_count >= 0) window[kind_.group_count] = range.size;
    return window;
  }

  /// Makes a result for statistics and gradients of all channels, or the empty tensors that evaluation returns.
  at::Tensor make_small(size_t result, const at::Tensor& window) const {
    std::vector<int64_t> sizes = window.sizes().vec();
    if (window.numel() > 0) sizes.back() = kind_.results[result] == Follows::groups ? groups_ : model_.size(1);
    return at::empty(sizes, window.options());
  }

  const NormOperator& kind_;
  const at::Tensor model_;
  const int64_t groups_;
  const int64_t step_;
};

}  // namespace

std::unique_ptr<WindowPlan> split_norms(const c10::OperatorHandle& op, OperatorArguments arguments,
                                        const WindowSizes& sizes) {
  const std::string_view name = op.schema().name();
  for (const NormOperator& kind : kNorms) {
    if (kind.name != name) continue;
    const at::Tensor& model = arguments[0].toTensor();
    if (!is_large_layout(model)) return nullptr;
    int64_t bytes = model.nbytes();  // bytes of the result
    for (size_t a = 0; a < kind.arguments.size() && a < arguments.size(); ++a) {
      const at::Tensor tensor = kind.arguments[a] == nothing ? at::Tensor() : tensor_or_undefined(arguments[a]);
      if (!tensor.defined()) continue;
      if (kind.arguments[a] != Follows::activations) {
        if (tensor.numel() > 0 && !is_plain_tensor(tensor)) return nullptr;
        continue;
      }
      if (!is_large_layout(tensor) || tensor.dim() < 2 || tensor.sizes() != model.sizes()) return nullptr;
      bytes += tensor.nbytes();
    }
    if (bytes <= sizes.split_bytes) return nullptr;
    const int64_t groups = kind.group_count >= 0 ? arguments[kind.group_count].toInt() : model.size(1);
    const int64_t unit = bytes / groups;
    // The kernels share channels among threads. So a window has one for each thread, where that takes no more than half
    // of split_bytes.
    const int64_t step = std::max(units_per_window(sizes.window_bytes(), unit),
                                  std::min<int64_t>(at::get_num_threads(), sizes.split_bytes / 2 / unit));
    return std::make_unique<NormPlan>(kind, model, groups, step, arguments.size());
  }
  return nullptr;
}

}  // namespace spillway::swap
