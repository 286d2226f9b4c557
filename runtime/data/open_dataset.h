/// Opens the data that a model trains on.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/data/dataset.h"
#include "runtime/io/shape3.h"

namespace spillway {

struct DatasetOptions {
  Shape3 shape = {0, 0, 0};    ///< what volumes are cropped and padded to; all 0: chosen by the data
  int64_t cases = 0;           ///< of synthetic data; ≥ 1; 0: as many as ModelInfo says
  int64_t classes = 10;        ///< of synthetic vectors and images; ≥ 1
  int64_t vocabulary = 30522;  ///< of synthetic sentences
  uint64_t seed = 0;           ///< of synthetic data
  int64_t cache_bytes = 0;     ///< see cached()
};

/// The data that `model` trains on. `source` is `synthetic:N` (volumes of edge N, or of `options.shape`; images of edge
/// N; sentences of N tokens; vectors of N features) or, for unet3d, a folder in the BraTS layout. Throws BadRequest
/// naming what is wrong.
std::unique_ptr<Dataset> open_dataset(std::string_view model, std::string_view source,
                                      const DatasetOptions& options = {});

/// N of `synthetic:N`; 0 for another source. Throws BadRequest when N is no positive number.
int64_t synthetic_size(std::string_view source);

}  // namespace spillway
