#include "kfac/inverse/background_solver.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::kfac {
namespace {

template <class Real>
using Syevd = void (*)(const char* job, const char* triangle, const int* n, Real* a, const int* lda, Real* w,
                       Real* work, const int* work_size, int* integers, const int* integers_size, int* info);

/// The sizes of syevd's workspace for eigenvectors of a matrix of side `n`: LWORK in elements, LIWORK in ints.
constexpr int64_t work_elements(int64_t n) {
  return 1 + 6 * n + 2 * n * n;
}
constexpr int64_t work_integers(int64_t n) {
  return 3 + 5 * n;
}

template <class Function>
Function find(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found) throw std::runtime_error(str("[kfac.background_solver] this LibTorch brings no ", name));
  return reinterpret_cast<Function>(found);
}

}  // namespace

/// The routines of LibTorch's MKL, and their workspace for the largest matrix.
struct BackgroundSolver::Lapack {
  Syevd<float> ssyevd = find<Syevd<float>>("ssyevd_");
  Syevd<double> dsyevd = find<Syevd<double>>("dsyevd_");
  int (*set_threads_of_this_thread)(int) = find<int (*)(int)>("MKL_Set_Num_Threads_Local");
  std::unique_ptr<CacheLine[]> work;
  std::vector<int> integers;

  template <class Real>
  void solve(Syevd<Real> syevd, int n, std::byte* matrix, std::byte* values) {
    const auto work_size = static_cast<int>(work_elements(n)), integers_size = static_cast<int>(work_integers(n));
    int info = 0;
    auto* w = reinterpret_cast<Real*>(values);
    syevd("V", "L", &n, reinterpret_cast<Real*>(matrix), &n, w, reinterpret_cast<Real*>(work.get()), &work_size,
          integers.data(), &integers_size, &info);
    if (info != 0) std::fill(w, w + n, std::numeric_limits<Real>::quiet_NaN());
  }
};

BackgroundSolver::BackgroundSolver(const std::vector<MatrixStack>& stacks, std::function<void()> before_each)
    : before_each_(std::move(before_each)), lapack_(std::make_unique<Lapack>()) {
  const auto lines = [this](int64_t bytes) {
    const int64_t rounded = round_up(bytes, int64_t{sizeof(CacheLine)});
    bytes_ += rounded;
    return std::make_unique<CacheLine[]>(static_cast<size_t>(rounded) / sizeof(CacheLine));
  };
  int64_t work_bytes = 0, largest = 0;
  for (const MatrixStack& shape : stacks) {
    const auto [groups, side, element_bytes] = shape;
    if (groups < 1 || side < 1 || side > kMaxSide || (element_bytes != 4 && element_bytes != 8))
      throw BadRequest(str("[kfac.background_solver] ", groups, " matrices of side ", side, " with ", element_bytes,
                           " bytes an element; allowed are 1 and more, 1 to ", kMaxSide, ", and 4 or 8"));
    stacks_.push_back({shape, lines(groups * side * side * element_bytes), lines(groups * side * element_bytes)});
    largest = std::max(largest, side);
    work_bytes = std::max(work_bytes, work_elements(side) * element_bytes);
  }
  lapack_->work = lines(work_bytes);
  lapack_->integers.resize(work_integers(largest));
  bytes_ += lapack_->integers.size() * sizeof(int);
}

BackgroundSolver::~BackgroundSolver() = default;

void BackgroundSolver::start() {
  if (thread_.joinable()) throw std::logic_error("[kfac.background_solver] started again before wait()");
  error_ = nullptr;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    try {
      solve_all(stop);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void BackgroundSolver::wait() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BackgroundSolver::solve_all(const std::stop_token& stop) {
  lapack_->set_threads_of_this_thread(1);
  for (Stack& stack : stacks_)
    for (int64_t group = 0; group < stack.shape.groups; ++group) {
      if (stop.stop_requested()) return;
      if (before_each_) before_each_();
      solve(stack, group);
    }
}

void BackgroundSolver::solve(Stack& stack, int64_t group) {
  const auto [groups, side, element_bytes] = stack.shape;
  std::byte* matrix = reinterpret_cast<std::byte*>(stack.matrices.get()) + group * side * side * element_bytes;
  std::byte* values = reinterpret_cast<std::byte*>(stack.values.get()) + group * side * element_bytes;
  // Column-major eigenvectors are rows to a row-major reader. The symmetric matrix is the same to both.
  if (element_bytes == 4)
    lapack_->solve(lapack_->ssyevd, side, matrix, values);
  else
    lapack_->solve(lapack_->dsyevd, side, matrix, values);
}

}  // namespace spillway::kfac
