#include "runtime/data/dataset.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "runtime/data/brats.h"
#include "runtime/data/seismic.h"
#include "runtime/data/synthetic.h"
#include "runtime/data/synthetic_curves.h"
#include "runtime/data/synthetic_images.h"
#include "runtime/data/synthetic_tokens.h"
#include "runtime/models/model_info.h"

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

std::unique_ptr<Dataset> open_synthetic(const ModelInfo& model, int64_t size, const DatasetOptions& options) {
  const int64_t cases = options.cases != 0 ? options.cases : model.cases;
  const uint64_t seed = options.seed;
  const Shape3 shape = options.shape != Shape3{} ? options.shape : Shape3{size, size, size};
  check_size(model, size);
  switch (model.input) {
    case InputKind::volumes:
      if (model.reads_folders)
        return std::make_unique<SyntheticVolumes>(
            SyntheticVolumes::Options{.shape = shape, .cases = cases, .seed = seed});
      return std::make_unique<SyntheticSeismic>(
          SyntheticSeismic::Options{.shape = shape, .cases = cases, .seed = seed});
    case InputKind::images:
      return std::make_unique<SyntheticImages>(
          SyntheticImages::Options{.edge = size, .classes = options.classes, .cases = cases, .seed = seed});
    case InputKind::tokens:
      return std::make_unique<SyntheticTokens>(
          SyntheticTokens::Options{.length = size, .vocabulary = options.vocabulary, .cases = cases, .seed = seed});
    case InputKind::curves:
      return std::make_unique<SyntheticCurves>(SyntheticCurves::Options{.edge = size, .cases = cases, .seed = seed});
    case InputKind::vectors:
      break;
  }
  return std::make_unique<SyntheticVectors>(
      SyntheticVectors::Options{.features = size, .classes = options.classes, .cases = cases, .seed = seed});
}

}  // namespace

Split split(int64_t cases) {
  if (cases < 2) throw BadRequest(str("the data has ", cases, " case(s); at least 2 are needed, one to validate on"));
  const int64_t held_out = std::max<int64_t>(1, cases / 10);
  Split parts;
  for (int64_t i = 0; i < cases; ++i) (i < cases - held_out ? parts.train : parts.validation).push_back(i);
  return parts;
}

Batch together(const std::vector<Batch>& cases) {
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
  return cases.size() == 1 ? cases[0] : together(cases);
}

std::unique_ptr<Dataset> cached(std::unique_ptr<Dataset> dataset, int64_t cache_bytes) {
  if (cache_bytes < 0) throw BadRequest(str("cache_bytes is ", cache_bytes, "; allowed is 0 or more"));
  if (cache_bytes == 0) return dataset;
  return std::make_unique<CachedDataset>(std::move(dataset), cache_bytes);
}

int64_t synthetic_size(std::string_view source) {
  if (!source.starts_with(kSyntheticPrefix)) return 0;
  const std::string_view number = source.substr(kSyntheticPrefix.size());
  int64_t size = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
  if (error != std::errc() || end != number.data() + number.size() || size < 1)
    throw BadRequest(str("data '", source, "' is not of the form synthetic:N with N from 1 on"));
  return size;
}

std::unique_ptr<Dataset> open_dataset(std::string_view model, std::string_view source, const DatasetOptions& options) {
  const ModelInfo& info = model_info(model);
  if (options.shape != Shape3{} && info.input != InputKind::volumes)
    throw BadRequest(str(model, " does not train on volumes, so it has no shape ", format_shape(options.shape)));
  if (const int64_t size = synthetic_size(source))
    return cached(open_synthetic(info, size, options), options.cache_bytes);
  if (!info.reads_folders) throw BadRequest(str(model, " trains on synthetic:N only, not on '", source, "'"));
  return cached(std::make_unique<BratsFolder>(source, options.shape), options.cache_bytes);
}

}  // namespace spillway
