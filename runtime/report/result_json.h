/// A TrainResult as the JSON that scripts outside the project read.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "runtime/results/train_result.h"

namespace spillway {

/// Returns the keys and values of `train --json`. A value is null where a number does not exist for this run. Bytes are
/// integers, times seconds.
nlohmann::json to_json(const TrainResult& result);

}  // namespace spillway
