/// Cases to train on, by index.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/models/batch.h"

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

}  // namespace spillway
