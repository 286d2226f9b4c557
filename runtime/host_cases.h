/// Cases kept in host memory: the device sees a copy of the batch that it works on, not the data set.
#pragma once
#include <memory>
#include <vector>

#include "runtime/dataset.h"

namespace spillway {

/// Loads every case of `dataset` up front when all fit in `limit_bytes`, else as they are asked for. What `at` returns
/// is outside the device's count; copy it to the device with `.clone()`. Throws as Dataset::at.
std::unique_ptr<Dataset> in_host_memory(std::unique_ptr<Dataset> dataset, int64_t limit_bytes);

}  // namespace spillway
