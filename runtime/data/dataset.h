/// Cases to train on, by index.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/models/batch.h"

namespace spillway::runtime {

/// Cases in a fixed order. `at` may be called from several threads at once and gives the same values every time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Returns the number of cases, at least 1.
  virtual int64_t size() const = 0;
  /// Returns case `index` as a batch of one, on the CPU; Batch lists the shapes. Do not write into it, because it may
  /// be shared.
  /// Throws BadRequest when the case cannot be read, c10::Error when `index` is outside 0 … size()-1.
  virtual Batch at(int64_t index) const = 0;
  /// Returns a short name, unique within the data set.
  virtual std::string name(int64_t index) const = 0;
  /// Returns the bytes of one case's batch.
  virtual int64_t case_bytes() const = 0;
  /// Returns a line about how the data is taken that its user should know; empty where there is nothing to tell.
  virtual std::string remark() const { return {}; }
};

/// The cases that training learns from and the cases that are only measured on. Indices, ascending.
struct Split {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
};

/// Holds out the last tenth of `cases` (rounded down, at least one).
/// Throws BadRequest when there are fewer than 2.
Split split(int64_t cases);

/// Returns a new batch of these cases, in that order. Even a single case is copied. Throws c10::Error when there are
/// none.
Batch collate(const std::vector<Batch>& cases);

/// Returns the cases `indices` as one batch, in that order. Throws as Dataset::at does; c10::Error when `indices` is
/// empty.
Batch gather(const Dataset& dataset, const std::vector<int64_t>& indices);

/// Returns `dataset` with a cache: loaded cases are kept while all kept ones fit in `cache_bytes` (0: none). The cases
/// that were loaded first stay; none is ever dropped.
std::unique_ptr<Dataset> cached(std::unique_ptr<Dataset> dataset, int64_t cache_bytes);

}  // namespace spillway::runtime
