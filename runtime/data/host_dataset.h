/// Cases kept in host memory: the device sees a copy of the batch that it works on, not the data set.
#pragma once
#include <memory>
#include <vector>

#include "runtime/data/dataset.h"

namespace spillway {

/// Loads the cases `used` of `dataset` up front when they fit in `limit_bytes`, and any others as they are asked for.
/// The result of `at` for those is outside the device's count; copy it to the device with `.clone()`. Throws as
/// Dataset::at.
std::unique_ptr<Dataset> in_host_memory(std::unique_ptr<Dataset> dataset, const std::vector<int64_t>& used,
                                        int64_t limit_bytes);

}  // namespace spillway
