#include "kfac/inverse/eigenbasis.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <limits>

#include "core/category.h"
#include "kfac/inverse/eigen_errors.h"

namespace spillway::kfac {
namespace {

using Solution = std::tuple<at::Tensor, at::Tensor>;

Solution eigh_of_one(const at::Tensor& matrix) {
  try {
    return at::linalg_eigh(matrix);
  } catch (const c10::LinAlgError&) {
    return {at::full({1, matrix.size(1)}, std::numeric_limits<double>::quiet_NaN(), matrix.options()),
            at::zeros_like(matrix)};
  }
}

// Solves one by one, because MKL's bits depend on where in memory a matrix begins. Besides, LibTorch throws for all
// matrices when one does not converge.
Solution eigh_by_lapack(const at::Tensor& matrices) {
  if (matrices.size(0) == 1) return eigh_of_one(matrices);
  std::vector<at::Tensor> values, vectors;
  for (const auto& matrix : matrices.split(1)) {
    auto [v, q] = eigh_of_one(matrix);
    values.push_back(std::move(v));
    vectors.push_back(std::move(q));
  }
  return {at::cat(values), at::cat(vectors)};
}

// Returns, on the host, true for each matrix of `factors` that was decomposed.
at::Tensor is_good(const at::Tensor& factors, const Solution& solution) {
  const auto& [values, vectors] = solution;
  return at_rounding_level(eigen_errors(factors, vectors, values), factors).to(at::kCPU);
}

void take(const Eigenbasis& basis, const at::Tensor& values, const at::Tensor& vectors) {
  basis.values.copy_(values.clamp_min(0));
  basis.vectors.copy_(vectors);
}

bool decompose_in_double(const at::Tensor& factor, const Eigenbasis& basis) {
  if (factor.scalar_type() == at::kDouble) return false;
  const auto wide = factor.to(at::kDouble);
  const auto solution = eigh(wide);
  if (!is_good(wide, solution).all().item<bool>()) return false;
  take(basis, std::get<0>(solution), std::get<1>(solution));
  return true;
}

}  // namespace

// The CUDA kernel of eigh is in kfac/inverse/eigh_cuda.cpp.
TORCH_LIBRARY_FRAGMENT(spillway, library) {
  library.def("eigh(Tensor matrices) -> (Tensor values, Tensor vectors)");
}

Solution eigh(const at::Tensor& matrices) {
  static const auto on_gpu = c10::Dispatcher::singleton().findSchemaOrThrow("spillway::eigh", "");
  if (matrices.is_cuda() && on_gpu.hasKernelForDispatchKey(c10::DispatchKey::CUDA))
    return on_gpu.typed<Solution(const at::Tensor&)>().call(matrices);
  return eigh_by_lapack(matrices);
}

Eigenbasis Eigenbasis::identity(int64_t count, int64_t side, const at::TensorOptions& like) {
  CategoryScope scope(Category::eigenbases);
  Eigenbasis basis{at::zeros({count, side, side}, like), at::zeros({count, side}, like)};
  basis.vectors.diagonal(0, -2, -1).fill_(1);
  return basis;
}

std::vector<bool> decompose(const std::vector<at::Tensor>& factors, const std::vector<Eigenbasis>& bases) {
  const auto all = factors.size() == 1 ? factors.front() : at::cat(factors);
  const auto solution = eigh(all);
  const auto& [values, vectors] = solution;
  const auto good = is_good(all, solution);
  std::vector<bool> done;
  int64_t begin = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const int64_t count = factors[i].size(0);
    done.push_back(good.narrow(0, begin, count).all().item<bool>());
    if (done.back())
      take(bases[i], values.narrow(0, begin, count), vectors.narrow(0, begin, count));
    else
      done.back() = decompose_in_double(factors[i], bases[i]);
    begin += count;
  }
  return done;
}

bool decompose(const at::Tensor& factor, const Eigenbasis& basis) {
  return decompose(std::vector{factor}, std::vector{basis}).front();
}

}  // namespace spillway::kfac
