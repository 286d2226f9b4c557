/// Training without Spillway's paging, for comparison.
#pragma once
#include <array>
#include <string_view>

#include "runtime/training/training_run.h"

namespace spillway::tools {

inline constexpr std::string_view kStock = "stock";
/// The ways in which every tensor that autograd saves goes to host memory and back (saved_on_host.h). The last two are
/// for GPUs.
inline constexpr std::string_view kSavedOnHost = "save_on_cpu";
inline constexpr std::string_view kSavedWithoutBlocking = "non_blocking";
inline constexpr std::string_view kSavedOneAhead = "one_ahead";
/// The way in which levels of the network are computed again for backward.
inline constexpr std::string_view kRecomputed = "checkpoint";

/// The ways that need less memory without Spillway.
inline constexpr std::array kPeers{kSavedOnHost, kSavedWithoutBlocking, kSavedOneAhead, kRecomputed};

/// True when `worker` is kStock or one of kPeers.
bool is_stock(std::string_view worker);
/// True when the model can be trained that way on its device.
bool can_train(const TrainOptions& options, std::string_view way);

/// Trains by plain LibTorch: no Session, no counting allocator, torch's own Adam. Takes steps as it is told to
/// (serve.h).
int serve_stock(const runtime::RunContext& context, std::string_view way);

/// Opens the device of a process that trains by `worker`, which is one of these ways, or another name for training that
/// counts bytes. It must be called before anything else of LibTorch's, because that looks for GPUs only once. Throws
/// DeviceError.
void open_device_for(const TrainOptions& options, std::string_view worker);

}  // namespace spillway::tools
