// Eigendecompositions on a GPU. Part of libspillway_cuda.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cusolverDn.h>
#include <torch/library.h>

#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "kfac/inverse/solve_stack.h"

namespace spillway::kfac {
namespace {

void check(cusolverStatus_t status, const char* call) {
  TORCH_CHECK(status == CUSOLVER_STATUS_SUCCESS, "[kfac.eigh] ", call, " failed with cuSOLVER status ",
              static_cast<int>(status));
}

struct DestroyHandle {
  void operator()(cusolverDnHandle_t handle) const { cusolverDnDestroy(handle); }
};

// Returns the handle for the current GPU and stream. Making a handle takes milliseconds, so each thread keeps one per
// GPU, as LibTorch does. (LibTorch's own handles are in a library that it loads when it needs them.)
cusolverDnHandle_t current_handle() {
  static thread_local std::map<c10::DeviceIndex, std::unique_ptr<cusolverDnContext, DestroyHandle>> handles;
  auto& handle = handles[c10::cuda::current_device()];
  if (!handle) {
    cusolverDnHandle_t made = nullptr;
    check(cusolverDnCreate(&made), "cusolverDnCreate");
    handle.reset(made);
  }
  check(cusolverDnSetStream(handle.get(), c10::cuda::getCurrentCUDAStream()), "cusolverDnSetStream");
  return handle.get();
}

struct DestroyParams {
  void operator()(cusolverDnParams_t params) const { cusolverDnDestroyParams(params); }
};
using Params = std::unique_ptr<cusolverDnParams, DestroyParams>;

Params make_params() {
  cusolverDnParams_t params = nullptr;
  check(cusolverDnCreateParams(&params), "cusolverDnCreateParams");
  return Params(params);
}

// The workspace of one call. Its GPU part comes from LibTorch's allocator, so that the budget counts it.
struct Workspace {
  at::Tensor device;
  std::vector<char> host;

  Workspace(size_t device_bytes, size_t host_bytes, const at::Tensor& like)
      : device(at::empty({static_cast<int64_t>(device_bytes)}, like.options().dtype(at::kByte))), host(host_bytes) {}
  // The host part must outlast the work of the call.
  ~Workspace() {
    if (!host.empty()) cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream());
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
};

class Solver {
 public:
  explicit Solver(const at::Tensor& like)
      : handle_(current_handle()),
        params_(make_params()),
        type_(like.scalar_type() == at::kDouble ? CUDA_R_64F : CUDA_R_32F) {}

  // Overwrites `matrices` [count, side, side] with eigenvectors as rows, `values` [count, side] and `info` [count].
  // Returns false when cuSOLVER refuses; the matrices may have changed then.
  bool solve_together(const at::Tensor& matrices, const at::Tensor& values, const at::Tensor& info) const {
    const int64_t count = matrices.size(0), side = matrices.size(1);
    size_t device_bytes = 0, host_bytes = 0;
    if (!took(cusolverDnXsyevBatched_bufferSize(handle_, params_.get(), kMode, kTriangle, side, type_,
                                                matrices.data_ptr(), side, type_, values.data_ptr(), type_,
                                                &device_bytes, &host_bytes, count)))
      return false;
    Workspace work(device_bytes, host_bytes, matrices);
    return took(cusolverDnXsyevBatched(handle_, params_.get(), kMode, kTriangle, side, type_, matrices.data_ptr(), side,
                                       type_, values.data_ptr(), type_, work.device.data_ptr(), device_bytes,
                                       work.host.data(), host_bytes, info.data_ptr<int>(), count));
  }

  // Does the same for one matrix [side, side].
  bool solve_one(const at::Tensor& matrix, const at::Tensor& values, const at::Tensor& info) const {
    const int64_t side = matrix.size(0);
    size_t device_bytes = 0, host_bytes = 0;
    if (!took(cusolverDnXsyevd_bufferSize(handle_, params_.get(), kMode, kTriangle, side, type_, matrix.data_ptr(),
                                          side, type_, values.data_ptr(), type_, &device_bytes, &host_bytes)))
      return false;
    Workspace work(device_bytes, host_bytes, matrix);
    return took(cusolverDnXsyevd(handle_, params_.get(), kMode, kTriangle, side, type_, matrix.data_ptr(), side, type_,
                                 values.data_ptr(), type_, work.device.data_ptr(), device_bytes, work.host.data(),
                                 host_bytes, info.data_ptr<int>()));
  }

 private:
  // Returns true for success. A matrix that cannot be decomposed may give a status instead of an entry of `info`.
  static bool took(cusolverStatus_t status) {
    if (status == CUSOLVER_STATUS_SUCCESS) return true;
    (void)cudaGetLastError();
    return false;
  }

  static constexpr cusolverEigMode_t kMode = CUSOLVER_EIG_MODE_VECTOR;
  // cuSOLVER is column-major: its upper triangle is the lower one of a row-major matrix.
  static constexpr cublasFillMode_t kTriangle = CUBLAS_FILL_MODE_UPPER;

  cusolverDnHandle_t handle_;
  Params params_;
  cudaDataType type_;
};

// The stack of one call, for solve_stack().
struct Stack {
  bool solve(int64_t begin, int64_t count) {
    if (count > 1)
      return solver.solve_together(rows.narrow(0, begin, count), values.narrow(0, begin, count),
                                   info.narrow(0, begin, count));
    return solver.solve_one(rows[begin], values[begin], info[begin]);
  }
  void restore(int64_t begin, int64_t count) {
    rows.narrow(0, begin, count).copy_(matrices.narrow(0, begin, count));
    info.narrow(0, begin, count).zero_();
  }
  void give_up(int64_t matrix) { info[matrix].fill_(1); }

  const at::Tensor& matrices;
  at::Tensor rows, values, info;
  Solver solver;
};

std::tuple<at::Tensor, at::Tensor> eigh_cuda(const at::Tensor& matrices) {
  TORCH_CHECK(matrices.dim() == 3 && matrices.size(1) == matrices.size(2), "[kfac.eigh] matrices are of sizes ",
              matrices.sizes(), "; allowed: [count, side, side]");
  TORCH_CHECK(matrices.scalar_type() == at::kFloat || matrices.scalar_type() == at::kDouble,
              "[kfac.eigh] matrices are ", matrices.scalar_type(), "; allowed: float32 and float64");
  const c10::cuda::CUDAGuard guard(matrices.device());
  const int64_t count = matrices.size(0), side = matrices.size(1);
  Stack stack{matrices, matrices.clone(at::MemoryFormat::Contiguous), at::empty({count, side}, matrices.options()),
              at::zeros({count}, matrices.options().dtype(at::kInt)), Solver(matrices)};
  solve_stack(stack, count, side);
  stack.values.masked_fill_(stack.info.ne(0).unsqueeze(1), std::numeric_limits<double>::quiet_NaN());
  return {stack.values, stack.rows.transpose(1, 2)};
}

}  // namespace

TORCH_LIBRARY_IMPL(spillway, CUDA, library) {
  library.impl("eigh", &eigh_cuda);
}

}  // namespace spillway::kfac
