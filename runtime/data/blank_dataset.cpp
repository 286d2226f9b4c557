#include "runtime/data/blank_dataset.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "core/memory/memory_range.h"
#include "runtime/data/preprocess.h"
#include "runtime/models/model_info.h"

namespace spillway::runtime {
namespace {

/// Returns a tensor that has addresses only.
at::Tensor blank(const std::vector<int64_t>& sizes, at::ScalarType type) {
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type)));
  auto memory = std::make_shared<MemoryRange>(reserve_memory(bytes));
  return at::from_blob(
      memory->data(), sizes, [memory](void*) {}, at::TensorOptions(type));
}

/// A dataset whose cases are all the same one.
class OneCase final : public Dataset {
 public:
  OneCase(std::unique_ptr<Dataset> dataset, Batch batch) : dataset_(std::move(dataset)), batch_(std::move(batch)) {}
  int64_t size() const override { return dataset_->size(); }
  Batch at(int64_t index) const override {
    (void)dataset_->name(index);  // checks the index
    return batch_;
  }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  int64_t case_bytes() const override { return dataset_->case_bytes(); }
  std::string remark() const override { return dataset_->remark(); }

 private:
  const std::unique_ptr<Dataset> dataset_;
  const Batch batch_;
};

}  // namespace

std::unique_ptr<Dataset> open_blank_dataset(std::string_view model, std::string_view source,
                                            const DatasetOptions& options) {
  auto dataset = open_dataset(model, source, options);
  const ModelInfo& info = model_info(model);
  const int64_t edge = synthetic_size(source);
  if (info.input != InputKind::volumes || edge == 0) {
    Batch first = dataset->at(0);
    return std::make_unique<OneCase>(std::move(dataset), std::move(first));
  }
  const auto [d, h, w] = options.shape != Shape3{} ? options.shape : Shape3{edge, edge, edge};
  const auto scans = static_cast<int64_t>(kModalities.size()), labels = static_cast<int64_t>(kTumourLabels.size());
  Batch batch = info.reads_folders
                    ? Batch{blank({1, scans, d, h, w}, at::kFloat), blank({1, labels, d, h, w}, at::kFloat)}
                    : Batch{blank({1, 1, d, h, w}, at::kFloat), blank({1, d, h, w}, at::kLong)};
  return std::make_unique<OneCase>(std::move(dataset), std::move(batch));
}

}  // namespace spillway::runtime
