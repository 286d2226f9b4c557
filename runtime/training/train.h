/// `spillway train` as a function.
#pragma once
#include "ddl/torch/comm.h"
#include "runtime/interruption/train_requests.h"
#include "runtime/results/train_listener.h"
#include "runtime/results/train_result.h"

namespace spillway {

/// Trains with `options`, over the ranks of `comm` (null: this process alone). When the options ask for a budget, a
/// step is observed first. The budget must be feasible before anything else happens. `requests`, if any, are read
/// before each operator. A run that is stopped in the midst of a step leaves it, and ends with the state of the last
/// whole step, which is saved. So does a run whose disk cannot take its pages, and then throws DiskError. Collective;
/// losses and metrics are the same on all of them. Throws BadRequest, InfeasibleBudget, OutOfBudget, DiskError,
/// ddl::CommError; Interrupted when it is stopped while the budget is chosen, because it has no results then.
TrainResult train(const TrainOptions& options, ddl::Comm comm, TrainListener& listener,
                  TrainRequests* requests = nullptr);

}  // namespace spillway
