// Pools and nearest upsampling: each plane (sample, channel) is computed on its own.
#include <ATen/ATen.h>

#include <array>
#include <numeric>
#include <optional>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {
namespace {

/// The places where an operator keeps its planes.
struct PlaneOperator {
  std::string_view name;
  int64_t spatial;                       ///< dimensions of a plane
  std::array<ArgumentUse, 8> arguments;  ///< by argument: tensors with planes
  int output_like = -1;                  ///< argument whose shape the results have; -1: see output_size, else a pool's
  int output_size = -1;                  ///< argument that holds the results' spatial sizes
  int input_size = -1;                   ///< argument that holds the results' whole shape
  int64_t index_bytes = 0;               ///< bytes of indices per element of the result
};
constexpr ArgumentUse kRead = ArgumentUse::windows, kShape = ArgumentUse::nothing, kNone = ArgumentUse::whole;
constexpr std::array<PlaneOperator, 12> kPlaneOperators{{
    {.name = "aten::max_pool2d_with_indices", .spatial = 2, .arguments = {kRead}, .index_bytes = 8},
    {.name = "aten::max_pool3d_with_indices", .spatial = 3, .arguments = {kRead}, .index_bytes = 8},
    {.name = "aten::avg_pool2d", .spatial = 2, .arguments = {kRead}},
    {.name = "aten::avg_pool3d", .spatial = 3, .arguments = {kRead}},
    {.name = "aten::max_pool2d_with_indices_backward",
     .spatial = 2,
     .arguments = {kRead, kShape, kNone, kNone, kNone, kNone, kNone, kRead},
     .output_like = 1},
    {.name = "aten::max_pool3d_with_indices_backward",
     .spatial = 3,
     .arguments = {kRead, kShape, kNone, kNone, kNone, kNone, kNone, kRead},
     .output_like = 1},
    {.name = "aten::avg_pool2d_backward", .spatial = 2, .arguments = {kRead, kShape}, .output_like = 1},
    {.name = "aten::avg_pool3d_backward", .spatial = 3, .arguments = {kRead, kShape}, .output_like = 1},
    {.name = "aten::upsample_nearest2d", .spatial = 2, .arguments = {kRead}, .output_size = 1},
    {.name = "aten::upsample_nearest3d", .spatial = 3, .arguments = {kRead}, .output_size = 1},
    {.name = "aten::upsample_nearest2d_backward", .spatial = 2, .arguments = {kRead}, .input_size = 2},
    {.name = "aten::upsample_nearest3d_backward", .spatial = 3, .arguments = {kRead}, .input_size = 2},
}};

int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

at::IntArrayRef spatial_sizes(const at::Tensor& tensor, int64_t spatial) {
  return tensor.sizes().slice(tensor.dim() - spatial);
}

/// Returns the tensor as [planes, spatial…].
at::Tensor as_planes(const at::Tensor& tensor, int64_t spatial) {
  std::vector<int64_t> sizes{-1};
  for (int64_t size : spatial_sizes(tensor, spatial)) sizes.push_back(size);
  return tensor.view(sizes);
}

class PlanesPlan final : public WindowPlan {
 public:
  PlanesPlan(const PlaneOperator& kind, at::Tensor model, int64_t step, size_t arguments)
      : kind_(kind), model_(std::move(model)), step_(step) {
    argument_uses.assign(arguments, ArgumentUse::whole);
    std::copy_n(kind.arguments.begin(), std::min(arguments, kind.arguments.size()), argument_uses.begin());
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results;
    const int64_t planes = model_.numel() / product(spatial_sizes(model_, kind_.spatial));
    for (const Range& range : ranges(planes, step_)) {
      const std::vector<at::Tensor> windows = call.attempt([&] { return call.kernel(arguments(call, range)); });
      for (size_t r = 0; r < windows.size(); ++r) {
        if (results.size() == r)
          results.push_back(
              call.output(r, sizes_of(windows[r]), at::MemoryFormat::Contiguous, windows[r].scalar_type()));
        call.write(as_planes(results[r], kind_.spatial).narrow(0, range.begin, range.size), windows[r].squeeze(0));
      }
    }
    return results;
  }

 private:
  /// Returns the arguments of a window: one sample whose channels are the planes.
  std::vector<c10::IValue> arguments(WindowCall& call, const Range& range) const {
    std::vector<c10::IValue> window = call.arguments().vec();
    for (size_t a = 0; a < window.size() && a < kind_.arguments.size(); ++a) {
      if (kind_.arguments[a] == ArgumentUse::whole) continue;
      const at::Tensor part =
          as_planes(window[a].toTensor(), kind_.spatial).narrow(0, range.begin, range.size).unsqueeze(0);
      window[a] = kind_.arguments[a] == ArgumentUse::windows ? call.read(part) : shape_only_tensor(part);
    }
    if (kind_.input_size >= 0) {
      std::vector<int64_t> sizes = window[kind_.input_size].toIntVector();
      sizes[0] = 1;
      sizes[1] = range.size;
      window[kind_.input_size] = std::move(sizes);
    }
    return window;
  }

  std::vector<int64_t> sizes_of(const at::Tensor& window) const {
    std::vector<int64_t> sizes = model_.sizes().vec();
    for (int64_t d = 1; d <= kind_.spatial; ++d) sizes[sizes.size() - d] = window.size(-d);
    return sizes;
  }

  const PlaneOperator& kind_;
  const at::Tensor model_;  // argument 0: its leading dimensions are the planes
  const int64_t step_;
};

/// Returns the elements of a plane of the result; for pools, an upper bound.
int64_t result_plane(const PlaneOperator& kind, OperatorArguments arguments) {
  auto argument = [&](int index) -> const c10::IValue& { return arguments[index]; };
  if (kind.output_like >= 0) return product(spatial_sizes(argument(kind.output_like).toTensor(), kind.spatial));
  if (kind.output_size >= 0) return product(argument(kind.output_size).toIntVector());
  if (kind.input_size >= 0) return product(at::IntArrayRef(argument(kind.input_size).toIntVector()).slice(2));
  std::vector<int64_t> stride = arguments[2].toIntVector();
  if (stride.empty()) stride = arguments[1].toIntVector();
  int64_t smaller = product(stride);
  if (stride.size() == 1)
    for (int64_t d = 1; d < kind.spatial; ++d) smaller *= stride[0];
  return product(spatial_sizes(arguments[0].toTensor(), kind.spatial)) / std::max<int64_t>(1, smaller);
}

}  // namespace

std::unique_ptr<WindowPlan> split_pooling(const c10::OperatorHandle& op, OperatorArguments arguments,
                                          const WindowSizes& sizes) {
  const std::string_view name = op.schema().name();
  for (const PlaneOperator& kind : kPlaneOperators) {
    if (kind.name != name) continue;
    int64_t plane_bytes = 0;
    for (size_t a = 0; a < arguments.size() && a < kind.arguments.size(); ++a) {
      if (kind.arguments[a] == ArgumentUse::whole) continue;
      const at::Tensor& tensor = arguments[a].toTensor();
      if (!is_large_layout(tensor) || tensor.dim() < kind.spatial + 1) return nullptr;
      plane_bytes += product(spatial_sizes(tensor, kind.spatial)) * tensor.element_size();
    }
    const at::Tensor& model = arguments[0].toTensor();
    plane_bytes += result_plane(kind, arguments) * (model.element_size() + kind.index_bytes);
    const int64_t planes = model.numel() / product(spatial_sizes(model, kind.spatial));
    if (plane_bytes * planes <= sizes.split_bytes) return nullptr;
    return std::make_unique<PlanesPlan>(kind, model, units_per_window(sizes.window_bytes(), plane_bytes),
                                        arguments.size());
  }
  return nullptr;
}

}  // namespace spillway::swap
