#include "runtime/data/open_dataset.h"

#include <string>

#include "core/error.h"
#include "core/parse_number.h"
#include "runtime/data/brats.h"
#include "runtime/data/synthetic.h"
#include "runtime/data/synthetic_tokens.h"
#include "runtime/models/model_info.h"

namespace spillway::runtime {
namespace {

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

int64_t synthetic_size(std::string_view source) {
  if (!source.starts_with(kSyntheticPrefix)) return 0;
  const int64_t size = parse_number<int64_t>(source.substr(kSyntheticPrefix.size())).value_or(0);
  if (size < 1) throw BadRequest(str("data '", source, "' is not of the form synthetic:N with N from 1 on"));
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

}  // namespace spillway::runtime
