#include "swap/shapes/measured_times.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/median.h"
#include "swap/shapes/map_tensors.h"

namespace spillway::swap {
namespace {

/// A call with arguments that have no bytes, and the share of the true call's bytes that it uses.
struct Sample {
  std::vector<c10::IValue> arguments;
  double scale = 1;
};

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

int64_t bytes_of(const std::vector<c10::IValue>& arguments) {
  int64_t bytes = 0;
  for (const c10::IValue& value : arguments)
    map_tensors(value, [&](const at::Tensor& tensor) {
      bytes += tensor.numel() * tensor.element_size();
      return tensor;
    });
  return bytes;
}

/// True for a tensor whose dimensions from the third on are spatial.
bool is_image(const at::Tensor& tensor) {
  return tensor.dim() >= 4;
}

/// Returns the sizes with half of each spatial dimension, or half of the largest one of a matrix. Sizes that are odd
/// stay.
std::vector<int64_t> halved(at::IntArrayRef sizes, bool image) {
  std::vector<int64_t> half = sizes.vec();
  const auto halve = [](int64_t& size) { size = size % 2 == 0 && size > 2 ? size / 2 : size; };
  if (image)
    for (size_t d = 2; d < half.size(); ++d) halve(half[d]);
  else if (!half.empty())
    halve(*std::max_element(half.begin(), half.end()));
  return half;
}

/// Returns the call on halved images; the same call where it has none that can be halved.
std::vector<c10::IValue> halved(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  size_t dimensions = 0;
  for (const c10::IValue& value : arguments)
    map_tensors(value, [&](const at::Tensor& tensor) {
      if (is_image(tensor)) dimensions = tensor.dim();
      return tensor;
    });
  std::vector<c10::IValue> half;
  for (size_t a = 0; a < arguments.size(); ++a) {
    const c10::IValue& value = arguments[a];
    if (value.isIntList() && schema.arguments()[a].name().ends_with("size") && dimensions > 0) {
      std::vector<int64_t> sizes = value.toIntVector();
      const size_t first = sizes.size() == dimensions ? 2 : 0;
      if (schema.arguments()[a].name() != "kernel_size")
        for (size_t d = first; d < sizes.size(); ++d) sizes[d] = sizes[d] % 2 == 0 ? sizes[d] / 2 : sizes[d];
      half.emplace_back(sizes);
      continue;
    }
    half.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
      if (dimensions > 0 && !is_image(tensor)) return tensor;
      return shape_like(tensor, halved(tensor.sizes(), dimensions > 0));
    }));
  }
  return half;
}

Sample sample_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments, int64_t max_bytes) {
  Sample sample;
  for (const c10::IValue& value : arguments)
    sample.arguments.push_back(map_tensors(value, [](const at::Tensor& t) { return shape_like(t, t.sizes()); }));
  const int64_t bytes = bytes_of(sample.arguments);
  while (bytes_of(sample.arguments) > max_bytes) {
    std::vector<c10::IValue> half = halved(schema, sample.arguments);
    if (bytes_of(half) >= bytes_of(sample.arguments)) break;
    sample.arguments = std::move(half);
  }
  if (bytes > 0) sample.scale = static_cast<double>(bytes) / static_cast<double>(bytes_of(sample.arguments));
  return sample;
}

void describe(const at::Tensor& tensor, std::string& text) {
  text += c10::toString(tensor.scalar_type());
  for (int64_t d = 0; d < tensor.dim(); ++d) text += str(d ? "x" : " ", tensor.size(d));
  // Not is_contiguous(): kernels also see the strides of dimensions of size 1.
  if (tensor.strides() != at::IntArrayRef(c10::contiguous_strides(tensor.sizes())))
    for (int64_t d = 0; d < tensor.dim(); ++d) text += str(d ? "," : "/", tensor.stride(d));
}

std::string key_of(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
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
double seconds_of(const c10::OperatorHandle& op, const std::vector<c10::IValue>& shapes, const at::Tensor& pass) {
  constexpr int64_t kCachedBytes = 1 << 20;
  constexpr double kEnough = 0.003;
  constexpr size_t kMostRuns = 17;
  const std::string& name = op.schema().name();
  const bool solves = name.find("linalg") != std::string::npos || name.find("cholesky") != std::string::npos ||
                      name.find("eigh") != std::string::npos;
  std::vector<c10::IValue> arguments;
  for (const c10::IValue& value : shapes)
    arguments.push_back(map_tensors(value, [&](const at::Tensor& shape) { return filled(shape, solves); }));
  std::vector<double> seconds;
  double total = 0;
  const bool is_large = bytes_of(arguments) >= kCachedBytes;
  while (seconds.size() < 2 || (!is_large && total < kEnough && seconds.size() < kMostRuns)) {
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
  Sample sample = sample_of(op.schema(), arguments, max_bytes_);
  const std::string key = key_of(op.schema(), sample.arguments);
  if (const auto known = seconds_.find(key); known != seconds_.end()) return known->second * sample.scale;
  noted_.try_emplace(key, Call{op, std::move(sample.arguments)});
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
  for (int round = 0; round < kRounds; ++round)
    for (const auto& [key, call] : noted_)
      if (std::vector<double>& of_rounds = seconds[key]; of_rounds.empty() || of_rounds.front() < kLong)
        of_rounds.push_back(seconds_of(call.op, call.arguments, pass));
  for (auto& [key, of_rounds] : seconds) seconds_[key] = median(std::move(of_rounds));
  noted_.clear();
}

}  // namespace spillway::swap
