/// A short measurement of the links' real costs.
#pragma once
#include <cstdint>

#include "ddl/allreduce/cost_model.h"

namespace spillway::ddl {

class Communicator;

/// The effort of a calibration.
struct CalibrationOptions {
  /// The bytes that measure bandwidth, in four exchanges. They must be many beside the bytes that links forward at
  /// once. 1 KiB to 1 GiB.
  int64_t message_bytes = int64_t{1} << 20;
  /// The number of exchanges of each kind, of which the median counts. 1 to 1000.
  int repeats = 5;

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// Measures every level of the communicator while all its groups are busy. Each child of a group sends to the next one
/// and hears from the one before, at the same time. First one rank of each child takes part (latency). Then as many
/// ranks take part as the smallest child has (bandwidth, with messages of several sizes). At last every rank adds. All
/// ranks call it and get the same numbers, those of the slowest rank. Cost: some 100 messages a level, four times
/// message_bytes·(repeats + 1) through every link. Throws CommError.
Costs calibrate(Communicator& comm, CalibrationOptions options = {});

}  // namespace spillway::ddl
