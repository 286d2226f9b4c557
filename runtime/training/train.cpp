#include "runtime/training/train.h"

#include <utility>

#include "runtime/training/train_in_context.h"

namespace spillway {

TrainResult train(const TrainOptions& options, ddl::Comm comm, TrainListener& listener, TrainRequests* requests) {
  return runtime::train_in_context(runtime::make_context(options, std::move(comm)), listener, requests);
}

}  // namespace spillway
