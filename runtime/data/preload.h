/// Cases kept in host memory. The device holds a copy of the batch that it works on, not the data set.
#pragma once
#include <memory>
#include <vector>

#include "runtime/data/dataset.h"

namespace spillway::runtime {

/// Loads the cases `used` of `dataset` up front when they fit in `limit_bytes`. Other cases are loaded when they are
/// asked for. A preloaded case that `at` returns is outside the device's count; copy it to the device with `.clone()`.
/// Throws as Dataset::at does.
std::unique_ptr<Dataset> preload(std::unique_ptr<Dataset> dataset, const std::vector<int64_t>& used,
                                 int64_t limit_bytes);

}  // namespace spillway::runtime
