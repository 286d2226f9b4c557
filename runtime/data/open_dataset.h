/// Access to the data that a model trains on.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/data/dataset.h"
#include "runtime/io/shape3.h"

namespace spillway::runtime {

struct DatasetOptions {
  Shape3 shape = {0, 0, 0};    ///< shape that volumes are cropped and padded to; all 0: chosen by the data
  int64_t cases = 0;           ///< number of synthetic cases; ≥ 1; 0: as many as ModelInfo says
  int64_t classes = 10;        ///< classes of synthetic vectors and images; ≥ 1
  int64_t vocabulary = 30522;  ///< words that synthetic sentences choose from
  uint64_t seed = 0;           ///< seed of synthetic data
  int64_t cache_bytes = 0;     ///< bytes to keep; see cached()
};

/// Opens the data that `model` trains on. `source` is `synthetic:N` or, for unet3d, a folder in the BraTS layout. N is
/// the edge of volumes (unless `options.shape` is given), the edge of images, the tokens of a sentence, or the features
/// of a vector. Throws BadRequest naming the mistake.
std::unique_ptr<Dataset> open_dataset(std::string_view model, std::string_view source,
                                      const DatasetOptions& options = {});

/// Returns N of `synthetic:N`, or 0 for another source. Throws BadRequest when N is not a positive number.
int64_t synthetic_size(std::string_view source);

}  // namespace spillway::runtime
