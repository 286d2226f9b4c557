#include "runtime/data/dataset.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/error.h"

namespace spillway::runtime {
namespace {

int64_t bytes_of(const Batch& batch) {
  return batch.input.nbytes() + batch.target.nbytes();
}

class CachedDataset : public Dataset {
 public:
  CachedDataset(std::unique_ptr<Dataset> dataset, int64_t cache_bytes)
      : dataset_(std::move(dataset)), free_bytes_(cache_bytes) {}
  int64_t size() const override { return dataset_->size(); }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  int64_t case_bytes() const override { return dataset_->case_bytes(); }
  std::string remark() const override { return dataset_->remark(); }

  Batch at(int64_t index) const override {
    {
      std::lock_guard lock(mutex_);
      if (auto known = cases_.find(index); known != cases_.end()) return known->second;
    }
    Batch batch = dataset_->at(index);
    std::lock_guard lock(mutex_);
    if (bytes_of(batch) <= free_bytes_ && cases_.emplace(index, batch).second) free_bytes_ -= bytes_of(batch);
    return batch;
  }

 private:
  std::unique_ptr<Dataset> dataset_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<int64_t, Batch> cases_;
  mutable int64_t free_bytes_;
};

}  // namespace

Split split(int64_t cases) {
  if (cases < 2) throw BadRequest(str("the data has ", cases, " case(s); at least 2 are needed, one to validate on"));
  const int64_t held_out = std::max<int64_t>(1, cases / 10);
  Split parts;
  for (int64_t i = 0; i < cases; ++i) (i < cases - held_out ? parts.train : parts.validation).push_back(i);
  return parts;
}

Batch collate(const std::vector<Batch>& cases) {
  TORCH_CHECK(!cases.empty(), "together: there are no cases; at least 1 is needed");
  std::vector<at::Tensor> inputs, targets;
  for (const Batch& one : cases) {
    inputs.push_back(one.input);
    targets.push_back(one.target);
  }
  return {at::cat(inputs), at::cat(targets)};
}

Batch gather(const Dataset& dataset, const std::vector<int64_t>& indices) {
  TORCH_CHECK(!indices.empty(), "gather: no cases were asked for; at least 1 is needed");
  std::vector<Batch> cases;
  for (int64_t index : indices) cases.push_back(dataset.at(index));
  return cases.size() == 1 ? cases[0] : collate(cases);
}

std::unique_ptr<Dataset> cached(std::unique_ptr<Dataset> dataset, int64_t cache_bytes) {
  if (cache_bytes < 0) throw BadRequest(str("cache_bytes is ", cache_bytes, "; allowed is 0 or more"));
  if (cache_bytes == 0) return dataset;
  return std::make_unique<CachedDataset>(std::move(dataset), cache_bytes);
}

}  // namespace spillway::runtime
