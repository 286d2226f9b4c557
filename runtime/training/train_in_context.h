/// A training run whose data and ranks are there already.
#pragma once
#include "runtime/interruption/train_requests.h"
#include "runtime/results/train_listener.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Trains as train() does, in a context that several runs may share.
TrainResult train_in_context(const RunContext& context, TrainListener& listener, TrainRequests* requests = nullptr);

}  // namespace spillway::runtime
