#include "runtime/dataset.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "runtime/brats.h"
#include "runtime/synthetic.h"

namespace spillway {
namespace {

int64_t bytes_of(const Batch& batch) {
  return static_cast<int64_t>(batch.input.nbytes() + batch.target.nbytes());
}

class CachedDataset : public Dataset {
 public:
  CachedDataset(std::unique_ptr<Dataset> dataset, int64_t cache_bytes)
      : dataset_(std::move(dataset)), free_bytes_(cache_bytes) {}
  int64_t size() const override { return dataset_->size(); }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  int64_t case_bytes() const override { return dataset_->case_bytes(); }

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

constexpr std::string_view kSyntheticPrefix = "synthetic:";

std::unique_ptr<Dataset> open_synthetic(std::string_view model, std::string_view source,
                                        const DatasetOptions& options) {
  const Shape3 cube = parse_shape(source.substr(kSyntheticPrefix.size()));
  if (cube[0] != cube[1] || cube[1] != cube[2])
    throw BadRequest(str("data '", source, "' is not of the form synthetic:N"));
  if (model == "mlp")
    return std::make_unique<SyntheticVectors>(SyntheticVectors::Options{
        .features = cube[0], .classes = options.classes, .cases = options.cases, .seed = options.seed});
  const bool chosen = options.shape != Shape3{};
  return std::make_unique<SyntheticVolumes>(
      SyntheticVolumes::Options{.shape = chosen ? options.shape : cube, .cases = options.cases, .seed = options.seed});
}

}  // namespace

Split split(int64_t cases) {
  if (cases < 2) throw BadRequest(str("the data has ", cases, " case(s); at least 2 are needed, one to validate on"));
  const int64_t held_out = std::max<int64_t>(1, cases / 10);
  Split parts;
  for (int64_t i = 0; i < cases; ++i) (i < cases - held_out ? parts.train : parts.validation).push_back(i);
  return parts;
}

Batch gather(const Dataset& dataset, const std::vector<int64_t>& indices) {
  TORCH_CHECK(!indices.empty(), "gather: no cases were asked for; at least 1 is needed");
  if (indices.size() == 1) return dataset.at(indices[0]);
  std::vector<at::Tensor> inputs, targets;
  for (int64_t index : indices) {
    auto batch = dataset.at(index);
    inputs.push_back(std::move(batch.input));
    targets.push_back(std::move(batch.target));
  }
  return {at::cat(inputs), at::cat(targets)};
}

std::unique_ptr<Dataset> cached(std::unique_ptr<Dataset> dataset, int64_t cache_bytes) {
  if (cache_bytes < 0) throw BadRequest(str("cache_bytes is ", cache_bytes, "; allowed is 0 or more"));
  if (cache_bytes == 0) return dataset;
  return std::make_unique<CachedDataset>(std::move(dataset), cache_bytes);
}

std::unique_ptr<Dataset> open_dataset(std::string_view model, std::string_view source, const DatasetOptions& options) {
  if (model != "unet3d" && model != "mlp")
    throw BadRequest(str("no data is known for model '", model, "'; known are: unet3d, mlp"));
  if (source.starts_with(kSyntheticPrefix)) return cached(open_synthetic(model, source, options), options.cache_bytes);
  if (model == "mlp") throw BadRequest(str("mlp trains on synthetic:N only, not on '", source, "'"));
  return cached(std::make_unique<BratsFolder>(source, options.shape), options.cache_bytes);
}

}  // namespace spillway
