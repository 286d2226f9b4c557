#include "runtime/data/preload.h"

#include <ATen/ATen.h>

#include <unordered_map>

#include "core/out_of_memory.h"

namespace spillway::runtime {
namespace {

/// Copies a tensor to memory that no CPU allocator of LibTorch knows.
at::Tensor outside(const at::Tensor& tensor) {
  at::Tensor dense = tensor.contiguous();
  const auto* bytes = static_cast<const char*>(dense.const_data_ptr());  // nullptr when there are no bytes
  auto memory = naming_who_allocates("a case of the data", static_cast<int64_t>(dense.nbytes()), [&] {
    return std::make_shared<std::vector<char>>(bytes, bytes + dense.nbytes());
  });
  return at::from_blob(
      memory->data(), dense.sizes(), [memory](void*) {}, dense.options());
}

class HostCases final : public Dataset {
 public:
  HostCases(std::unique_ptr<Dataset> dataset, const std::vector<int64_t>& used) : dataset_(std::move(dataset)) {
    for (const int64_t index : used) {
      Batch batch = dataset_->at(index);
      cases_.emplace(index, Batch{outside(batch.input), outside(batch.target)});
    }
  }
  int64_t size() const override { return dataset_->size(); }
  Batch at(int64_t index) const override {
    const auto held = cases_.find(index);
    return held != cases_.end() ? held->second : dataset_->at(index);
  }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  int64_t case_bytes() const override { return dataset_->case_bytes(); }
  std::string remark() const override { return dataset_->remark(); }

 private:
  std::unique_ptr<Dataset> dataset_;
  std::unordered_map<int64_t, Batch> cases_;
};

}  // namespace

std::unique_ptr<Dataset> preload(std::unique_ptr<Dataset> dataset, const std::vector<int64_t>& used,
                                 int64_t limit_bytes) {
  if (std::ssize(used) * dataset->case_bytes() > limit_bytes) return dataset;
  return std::make_unique<HostCases>(std::move(dataset), used);
}

}  // namespace spillway::runtime
