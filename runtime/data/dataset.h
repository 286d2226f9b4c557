/// Cases to train on, by index.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/batch.h"
#include "runtime/io/shape3.h"

namespace spillway {

/// Cases in a fixed order. `at` may be called from several threads at once and gives the same values every time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// How many cases there are; at least 1.
  virtual int64_t size() const = 0;
  /// Case `index` as a batch of one, on the CPU: see Batch for shapes. Do not write into it: it may be shared.
  /// Throws BadRequest when the case cannot be read, c10::Error when `index` is outside 0 … size()-1.
  virtual Batch at(int64_t index) const = 0;
  /// A short name, unique within the data set.
  virtual std::string name(int64_t index) const = 0;
  /// Bytes of one case's batch.
  virtual int64_t case_bytes() const = 0;
};

/// Which cases are learned from and which are only measured on. Indices, ascending.
struct Split {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
};

/// Holds out the last tenth of `cases` (rounded down, at least one).
/// Throws BadRequest when there are fewer than 2.
Split split(int64_t cases);

/// A new batch of these cases, in that order: also of one case a copy. Throws c10::Error when there are none.
Batch together(const std::vector<Batch>& cases);

/// The cases `indices` as one batch, in that order. Throws as Dataset::at; c10::Error when `indices` is empty.
Batch gather(const Dataset& dataset, const std::vector<int64_t>& indices);

/// `dataset`, remembering cases once loaded while all remembered ones fit in `cache_bytes` (0: none). The first to be
/// loaded stay: nothing is ever forgotten.
std::unique_ptr<Dataset> cached(std::unique_ptr<Dataset> dataset, int64_t cache_bytes);

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
