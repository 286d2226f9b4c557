/// Training without Spillway's paging, for comparison.
#pragma once
#include <string_view>

#include "runtime/training/training_run.h"

namespace spillway::tools {

inline constexpr std::string_view kStock = "stock";
/// Every tensor that autograd saves goes to host memory and back.
inline constexpr std::string_view kSavedOnHost = "save_on_cpu";
/// Levels of the network are computed again for backward.
inline constexpr std::string_view kRecomputed = "checkpoint";

/// Whether `worker` is one of these ways.
bool is_stock(std::string_view worker);
/// Whether the model can be trained that way.
bool can_train(const TrainOptions& options, std::string_view way);

/// Plain LibTorch: no Session, no counting allocator, torch's own Adam. Takes steps as it is told to (serve.h).
int serve_stock(const RunContext& context, std::string_view way);

/// Before anything else of LibTorch's, which looks for cards once: this process trains by `worker`, which is one of
/// these ways or something else that counts. Throws DeviceError.
void open_device_for(const TrainOptions& options, std::string_view worker);

}  // namespace spillway::tools
