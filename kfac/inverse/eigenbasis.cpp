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

bool decompose_in_double(const at::Tensor& factor, const Eigenbasis& basis) {
  if (factor.scalar_type() == at::kDouble) return false;
  const auto wide = factor.to(at::kDouble);
  const auto solution = eigh(wide);
  if (!is_good(wide, solution).all().item<bool>()) return false;
  overwrite({basis}, {true}, std::get<0>(solution).clamp_min(0), std::get<1>(solution));
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

std::vector<bool> all_of_each(const std::vector<Eigenbasis>& bases, const at::Tensor& marks) {
  // Nearly always one read tells. Reads are operators, because a dry run, which has no values, answers them with true.
  if (marks.all().item<bool>()) return std::vector<bool>(bases.size(), true);
  std::vector<bool> all;
  int64_t begin = 0;
  for (const Eigenbasis& basis : bases) {
    const int64_t count = basis.vectors.size(0);
    all.push_back(marks.narrow(0, begin, count).all().item<bool>());
    begin += count;
  }
  return all;
}

void overwrite(const std::vector<Eigenbasis>& bases, const std::vector<bool>& chosen, const at::Tensor& values,
               const at::Tensor& vectors) {
  std::vector<at::Tensor> places, contents;
  int64_t begin = 0;
  for (size_t i = 0; i < bases.size(); ++i) {
    const int64_t count = bases[i].vectors.size(0);
    if (chosen[i]) {
      places.insert(places.end(), {bases[i].values, bases[i].vectors});
      contents.insert(contents.end(), {values.narrow(0, begin, count), vectors.narrow(0, begin, count)});
    }
    begin += count;
  }
  if (!places.empty()) at::_foreach_copy_(places, contents);
}

Eigenbasis Eigenbasis::identity(int64_t count, int64_t side, const at::TensorOptions& like) {
  CategoryScope scope(Category::eigenbases);
  Eigenbasis basis{at::zeros({count, side, side}, like), at::zeros({count, side}, like)};
  basis.vectors.diagonal(0, -2, -1).fill_(1);
  return basis;
}

std::vector<bool> decompose(const at::Tensor& factors, const std::vector<Eigenbasis>& bases) {
  const auto solution = eigh(factors);
  auto done = all_of_each(bases, is_good(factors, solution));
  overwrite(bases, done, std::get<0>(solution).clamp_min(0), std::get<1>(solution));
  int64_t begin = 0;
  for (size_t i = 0; i < bases.size(); ++i) {
    const int64_t count = bases[i].vectors.size(0);
    if (!done[i]) done[i] = decompose_in_double(factors.narrow(0, begin, count), bases[i]);
    begin += count;
  }
  return done;
}

bool decompose(const at::Tensor& factor, const Eigenbasis& basis) {
  return decompose(factor, std::vector{basis}).front();
}

}  // namespace spillway::kfac
