#include "runtime/host_cases.h"

#include <ATen/ATen.h>

#include <cstring>

namespace spillway {
namespace {

/// The same values in memory that no CPU allocator of LibTorch knows.
at::Tensor outside(const at::Tensor& tensor) {
  at::Tensor dense = tensor.contiguous();
  auto memory = std::make_shared<std::vector<char>>(dense.nbytes());
  std::memcpy(memory->data(), dense.const_data_ptr(), dense.nbytes());
  return at::from_blob(
      memory->data(), dense.sizes(), [memory](void*) {}, dense.options());
}

class HostCases final : public Dataset {
 public:
  explicit HostCases(std::unique_ptr<Dataset> dataset) : dataset_(std::move(dataset)) {
    for (int64_t i = 0; i < dataset_->size(); ++i) {
      Batch batch = dataset_->at(i);
      cases_.push_back({outside(batch.input), outside(batch.target)});
    }
  }
  int64_t size() const override { return dataset_->size(); }
  Batch at(int64_t index) const override { return cases_.at(static_cast<size_t>(index)); }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  int64_t case_bytes() const override { return dataset_->case_bytes(); }

 private:
  std::unique_ptr<Dataset> dataset_;
  std::vector<Batch> cases_;
};

}  // namespace

std::unique_ptr<Dataset> in_host_memory(std::unique_ptr<Dataset> dataset, int64_t limit_bytes) {
  if (dataset->size() * dataset->case_bytes() > limit_bytes) return dataset;
  return std::make_unique<HostCases>(std::move(dataset));
}

}  // namespace spillway
