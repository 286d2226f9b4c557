// cat and clone: nothing is computed, windows are only moved.
#include <ATen/ATen.h>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {
namespace {

/// Copies each part as rows of equal length that lie one after another. In the result they lie behind the rows of the
/// parts before.
class CopyPlan final : public WindowPlan {
 public:
  CopyPlan(std::vector<at::Tensor> parts, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t rows,
           int64_t window_elements, size_t arguments)
      : parts_(std::move(parts)),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)),
        rows_(rows),
        window_elements_(window_elements) {
    argument_uses.assign(arguments, ArgumentUse::whole);
    argument_uses[0] = ArgumentUse::windows;
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    at::Tensor result = call.output(0, sizes_, strides_, parts_[0].scalar_type());
    int64_t length = 0;
    for (const at::Tensor& part : parts_) length += part.numel() / rows_;
    int64_t offset = 0;
    for (const at::Tensor& part : parts_) {
      const int64_t own = part.numel() / rows_;
      const at::Tensor from = part.as_strided({rows_, own}, {own, 1}, part.storage_offset());
      move(call, from, result.as_strided({rows_, own}, {length, 1}, offset));
      offset += own;
    }
    return {result};
  }

 private:
  /// Moves several rows at once where they are short, pieces of each where they are long.
  void move(WindowCall& call, const at::Tensor& from, const at::Tensor& to) const {
    const int64_t length = from.size(1);
    for (const Range& rows : ranges(rows_, units_per_window(window_elements_, length)))
      for (const Range& columns : ranges(length, window_elements_)) {
        auto box = [&](const at::Tensor& t) {
          return t.narrow(0, rows.begin, rows.size).narrow(1, columns.begin, columns.size);
        };
        call.attempt([&] {
          call.write(box(to), call.read(box(from)));
          return 0;
        });
      }
  }

  const std::vector<at::Tensor> parts_;
  const std::vector<int64_t> sizes_, strides_;
  const int64_t rows_;
  const int64_t window_elements_;
};

std::unique_ptr<WindowPlan> split_cat(OperatorArguments arguments, const WindowSizes& sizes) {
  std::vector<at::Tensor> parts = arguments[0].toTensorVector();
  int64_t bytes = 0;
  for (const at::Tensor& part : parts) {
    if (!is_large_layout(part)) return nullptr;
    bytes += part.nbytes();
  }
  if (2 * bytes <= sizes.split_bytes) return nullptr;
  const at::Tensor& first = parts[0];
  const int64_t dimension = c10::maybe_wrap_dim(arguments[1].toInt(), first.dim());
  std::vector<int64_t> result = first.sizes().vec();
  result[dimension] = 0;
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() != first.scalar_type() || part.dim() != first.dim()) return nullptr;
    for (int64_t d = 0; d < first.dim(); ++d)
      if (d != dimension && part.size(d) != first.size(d)) return nullptr;
    result[dimension] += part.size(dimension);
  }
  int64_t rows = 1;
  for (int64_t d = 0; d < dimension; ++d) rows *= first.size(d);
  const auto strides = c10::contiguous_strides(result);
  const int64_t window_elements = units_per_window(sizes.window_bytes(), 2 * first.element_size());
  return std::make_unique<CopyPlan>(std::move(parts), std::move(result), std::vector(strides.begin(), strides.end()),
                                    rows, window_elements, arguments.size());
}

std::unique_ptr<WindowPlan> split_clone(OperatorArguments arguments, const WindowSizes& sizes) {
  const at::Tensor tensor = tensor_or_undefined(arguments[0]);
  if (!is_plain_tensor(tensor) || 2 * static_cast<int64_t>(tensor.nbytes()) <= sizes.split_bytes) return nullptr;
  const at::MemoryFormat format = arguments[1].isNone() ? at::MemoryFormat::Preserve : arguments[1].toMemoryFormat();
  const bool dense =
      format == at::MemoryFormat::Preserve ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous(format);
  if (!dense) return nullptr;
  const int64_t window_elements = units_per_window(sizes.window_bytes(), 2 * tensor.element_size());
  return std::make_unique<CopyPlan>(std::vector{tensor}, tensor.sizes().vec(), tensor.strides().vec(), 1,
                                    window_elements, arguments.size());
}

}  // namespace

std::unique_ptr<WindowPlan> split_copies(const c10::OperatorHandle& op, OperatorArguments arguments,
                                         const WindowSizes& sizes) {
  return op.schema().name() == "aten::cat" ? split_cat(arguments, sizes) : split_clone(arguments, sizes);
}

}  // namespace spillway::swap
