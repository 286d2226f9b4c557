#include "swap/shapes/measured_times.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/median.h"
#include "swap/shapes/map_tensors.h"

namespace spillway::swap {
namespace {

using CallArguments = std::vector<c10::IValue>;

/// Returns a tensor without bytes, of these sizes, whose dimensions lie in memory in the order of the tensor's. Among
/// dimensions of one stride the later ones are the inner ones. With the earlier ones inside, weights of 1×1 kernels
/// would look like channels-last ones, and get another kernel.
at::Tensor shape_like(const at::Tensor& tensor, at::IntArrayRef sizes) {
  std::vector<int64_t> order(tensor.dim()), strides(tensor.dim());
  for (int64_t d = 0; d < tensor.dim(); ++d) order[d] = tensor.dim() - 1 - d;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t next = 1;
  for (int64_t d : order) {
    strides[d] = tensor.stride(d) == 0 ? 0 : next;
    if (strides[d] != 0) next *= std::max<int64_t>(1, sizes[d]);
  }
  at::Tensor meta = at::detail::empty_strided_meta(sizes, strides, tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

int64_t bytes_of(const CallArguments& arguments) {
  int64_t bytes = 0;
  for (const c10::IValue& value : arguments)
    map_tensors(value, [&](const at::Tensor& tensor) {
      bytes += tensor.numel() * tensor.element_size();
      return tensor;
    });
  return bytes;
}

/// Returns the call with other sizes: `change(argument, sizes)` of each tensor and of each list of sizes.
CallArguments with_sizes(const c10::FunctionSchema& schema, const CallArguments& arguments, const auto& change) {
  CallArguments changed;
  for (size_t a = 0; a < arguments.size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const std::string& name = argument.name();
    const bool has_sizes = name.ends_with("size") || name.ends_with("sizes") || name.ends_with("shape");
    if (arguments[a].isIntList() && has_sizes && name != "kernel_size") {
      changed.emplace_back(change(argument, arguments[a].toIntVector()));
      continue;
    }
    changed.push_back(map_tensors(arguments[a], [&](const at::Tensor& tensor) {
      return shape_like(tensor, change(argument, tensor.sizes().vec()));
    }));
  }
  return changed;
}

/// Calls `visit(argument, tensor)` with each tensor of a call.
void for_tensors(const c10::FunctionSchema& schema, const CallArguments& arguments, const auto& visit) {
  for (size_t a = 0; a < arguments.size(); ++a)
    map_tensors(arguments[a], [&](const at::Tensor& tensor) {
      visit(schema.arguments()[a], tensor);
      return tensor;
    });
}

/// Returns the number of dimensions of a call's images: sample, channel, and two or more of space. 0 where it has none.
/// The weight of a convolution is no image.
size_t image_dimensions(const c10::FunctionSchema& schema, const CallArguments& arguments) {
  size_t dimensions = 0;
  for_tensors(schema, arguments, [&](const c10::Argument& argument, const at::Tensor& tensor) {
    if (tensor.dim() >= 4 && argument.name() != "weight") dimensions = tensor.dim();
  });
  return dimensions;
}

/// Returns which dimension of an image each of `count` sizes is; none for sizes that are no image's. Lists may have
/// those of space alone, and targets have no channels.
std::vector<size_t> dimensions_of_image(const c10::Argument& argument, size_t count, size_t dimensions) {
  const std::string& name = argument.name();
  if (name == "weight" || count > dimensions) return {};
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), dimensions - count);
  if (count == dimensions || (name.ends_with("size") && count + 2 == dimensions)) return all;
  if (name != "target" || count + 1 != dimensions) return {};
  all.front() = 0;
  return all;
}

/// Returns the call on images of half the size, or on half of the images. Nothing where one of their sizes cannot be
/// halved, because with a stride the others would no longer fit to it. Sizes of 1 stay.
std::optional<CallArguments> with_half_images(const c10::FunctionSchema& schema, const CallArguments& arguments,
                                              bool in_space) {
  const size_t dimensions = image_dimensions(schema, arguments);
  bool fits = true, halves = false;
  const auto change = [&](const c10::Argument& argument, std::vector<int64_t> sizes) {
    const std::vector<size_t> of_image = dimensions_of_image(argument, sizes.size(), dimensions);
    for (size_t d = 0; d < of_image.size(); ++d) {
      const bool is_chosen = in_space ? of_image[d] >= 2 : of_image[d] == 0;
      if (!is_chosen || sizes[d] == 1) continue;
      fits = fits && sizes[d] % 2 == 0 && (sizes[d] > 2 || !in_space);
      halves = true;
      sizes[d] /= 2;
    }
    return sizes;
  };
  CallArguments half = with_sizes(schema, arguments, change);
  if (!fits || !halves) return std::nullopt;
  return half;
}

/// Returns the call with half of the largest even size, wherever it occurs: sizes that were equal still are.
std::optional<CallArguments> with_half_size(const c10::FunctionSchema& schema, const CallArguments& arguments) {
  int64_t largest = 0;
  for_tensors(schema, arguments, [&](const c10::Argument&, const at::Tensor& tensor) {
    for (int64_t size : tensor.sizes())
      if (size % 2 == 0 && size > 2) largest = std::max(largest, size);
  });
  if (largest == 0) return std::nullopt;
  return with_sizes(schema, arguments, [&](const c10::Argument&, std::vector<int64_t> sizes) {
    std::ranges::replace(sizes, largest, largest / 2);
    return sizes;
  });
}

/// Returns the call on a half of its arguments; nothing where no size can be halved.
std::optional<CallArguments> halved(const c10::FunctionSchema& schema, const CallArguments& arguments) {
  if (image_dimensions(schema, arguments) > 0)
    for (bool in_space : {true, false})
      if (auto half = with_half_images(schema, arguments, in_space)) return half;
  return with_half_size(schema, arguments);
}

/// Returns the call without bytes, and halves of it, halves of these, and so on, to the first of at most `max_bytes`.
std::vector<CallArguments> halves_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                                     int64_t max_bytes) {
  std::vector<CallArguments> halves(1);
  for (const c10::IValue& value : arguments)
    halves.front().push_back(map_tensors(value, [](const at::Tensor& t) { return shape_like(t, t.sizes()); }));
  while (bytes_of(halves.back()) > max_bytes) {
    auto half = halved(schema, halves.back());
    if (!half || bytes_of(*half) >= bytes_of(halves.back())) break;
    halves.push_back(*std::move(half));
  }
  return halves;
}

/// Returns how often the bytes of `part` are in those of `whole`.
double times_in(const CallArguments& part, const CallArguments& whole) {
  const int64_t bytes = bytes_of(whole);
  return bytes > 0 ? static_cast<double>(bytes) / static_cast<double>(bytes_of(part)) : 1;
}

void describe(const at::Tensor& tensor, std::string& text) {
  text += c10::toString(tensor.scalar_type());
  for (int64_t d = 0; d < tensor.dim(); ++d) text += str(d ? "x" : " ", tensor.size(d));
  // Not is_contiguous(): kernels also see the strides of dimensions of size 1.
  if (tensor.strides() != at::IntArrayRef(c10::contiguous_strides(tensor.sizes())))
    for (int64_t d = 0; d < tensor.dim(); ++d) text += str(d ? "," : "/", tensor.stride(d));
}

std::string key_of(const c10::FunctionSchema& schema, const CallArguments& arguments) {
  std::string key = schema.name() + "." + schema.overload_name();
  for (const c10::IValue& value : arguments) {
    key += "; ";
    if (value.isInt() || value.isBool() || value.isIntList() || value.isBoolList()) {
      key += spillway::str(value);
      continue;
    }
    map_tensors(value, [&](const at::Tensor& tensor) {
      describe(tensor, key);
      return tensor;
    });
  }
  return key;
}

/// Returns a tensor with values that every operator takes: a well-conditioned matrix for solvers, zero for indices, and
/// random numbers for others, because some kernels are faster where all numbers are equal.
at::Tensor filled(const at::Tensor& shape, bool solves) {
  const int64_t item = c10::elementSize(shape.scalar_type());
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(shape.sizes(), shape.strides(), item));
  const at::Tensor memory = at::empty({bytes / item}, at::TensorOptions(shape.scalar_type()));
  if (!memory.is_floating_point())
    memory.fill_(memory.scalar_type() == at::kBool ? 1 : 0);
  else
    memory.uniform_(-1, 1);
  at::Tensor tensor = memory.as_strided(shape.sizes(), shape.strides());
  if (shape.unsafeGetTensorImpl()->is_wrapped_number()) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (solves && tensor.is_floating_point() && tensor.dim() >= 2 && tensor.size(-1) == tensor.size(-2))
    tensor.diagonal(0, -2, -1).add_(2 * std::sqrt(static_cast<double>(tensor.size(-1))));
  return tensor;
}

/// Measures one call in one round. `pass` is larger than the caches: writing it leaves none of the arguments there. In
/// a step their bytes have left the caches too, unless they are few.
double seconds_of(const c10::OperatorHandle& op, const CallArguments& shapes, const at::Tensor& pass) {
  constexpr int64_t kCachedBytes = 1 << 20;
  constexpr double kEnough = 0.003;
  constexpr size_t kMaxRuns = 17;
  const std::string& name = op.schema().name();
  const bool solves = name.find("linalg") != std::string::npos || name.find("cholesky") != std::string::npos ||
                      name.find("eigh") != std::string::npos;
  CallArguments arguments;
  for (const c10::IValue& value : shapes)
    arguments.push_back(map_tensors(value, [&](const at::Tensor& shape) { return filled(shape, solves); }));
  std::vector<double> seconds;
  double total = 0;
  const bool is_large = bytes_of(arguments) >= kCachedBytes;
  while (seconds.size() < 2 || (!is_large && total < kEnough && seconds.size() < kMaxRuns)) {
    if (is_large) pass.add_(1);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    const auto start = Clock::now();
    op.callBoxed(&stack);
    stack.clear();  // a step frees the results too
    seconds.push_back(seconds_since(start));
    total += seconds.back();
  }
  seconds.erase(seconds.begin());  // the first run finds cold caches, and the kernel's code not yet loaded
  return median(std::move(seconds));
}

/// Measures the last of `halves` in one round. Where the operator refuses that one, because other sizes follow from
/// those that were halved, the one before it counts, by its share of the bytes. Throws what the whole call throws.
double seconds_of_last(const c10::OperatorHandle& op, std::vector<CallArguments>& halves, const CallArguments& last,
                       const at::Tensor& pass) {
  while (halves.size() > 1) {
    try {
      return seconds_of(op, halves.back(), pass) / times_in(last, halves.back());
    } catch (const std::exception&) {
      halves.pop_back();
    }
  }
  return seconds_of(op, halves.front(), pass) / times_in(last, halves.front());
}

/// Gives the CPU's default generator its state back at the end, because operators that are measured may draw from it.
class KeepGenerator {
 public:
  KeepGenerator() : live_(at::globalContext().defaultGenerator(at::Device(at::kCPU))) {
    const std::lock_guard lock(live_.mutex());
    state_ = live_.get_state();
  }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;
  ~KeepGenerator() {
    const std::lock_guard lock(live_.mutex());
    live_.set_state(state_);
  }

 private:
  at::Generator live_;
  at::Tensor state_;
};

}  // namespace

bool in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

double MeasuredTimes::seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<CallArguments> halves = halves_of(op.schema(), arguments, max_bytes_);
  const std::string key = key_of(op.schema(), halves.back());
  if (const auto known = seconds_.find(key); known != seconds_.end())
    return known->second * times_in(halves.back(), halves.front());
  noted_.try_emplace(key, Call{op, std::move(halves)});
  return 0;
}

void MeasuredTimes::measure() {
  const at::NoGradGuard no_grad;
  const KeepGenerator keep_generator;
  const at::Tensor pass = at::zeros({int64_t{16} << 20}, at::TensorOptions(at::kFloat));
  // Rounds over all calls, because a machine may be slow for a second, which is all runs of a short call. A long call
  // outlasts that in one round.
  constexpr int kRounds = 3;
  constexpr double kLong = 0.05;
  std::map<std::string, std::vector<double>> seconds;
  std::map<std::string, CallArguments> last;
  for (const auto& [key, call] : noted_) last[key] = call.halves.back();
  for (int round = 0; round < kRounds; ++round)
    for (auto& [key, call] : noted_)
      if (std::vector<double>& of_rounds = seconds[key]; of_rounds.empty() || of_rounds.front() < kLong)
        of_rounds.push_back(seconds_of_last(call.op, call.halves, last[key], pass));
  for (auto& [key, of_rounds] : seconds) seconds_[key] = median(std::move(of_rounds));
  noted_.clear();
}

double measure_copy_rate() {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int kCopies = 8;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  const at::Tensor left = at::ones({512, 512}), right = at::ones({512, 512});
  std::atomic<bool> done = false;
  double seconds = 0;
  std::thread copier([&] {
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) std::memcpy(to.data(), from.data(), kBytes);
    seconds = seconds_since(start);
    done = true;
  });
  while (!done) (void)at::mm(left, right);
  copier.join();
  return static_cast<double>(kBytes) * kCopies / seconds;
}

}  // namespace spillway::swap
