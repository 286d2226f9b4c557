/// The messages of a rank's training passes, counted by channel.
#pragma once
#include <cstdint>
#include <vector>

#include "ddl/courier/courier.h"
#include "pipe/channels.h"

namespace spillway::runtime {

/// The messages of the passes so far on a channel, at one of its ends.
struct ChannelMessages {
  int number = 0;  ///< among pipe::channels() of the program
  pipe::Channel channel;
  int64_t bytes = 0;
  double waited = 0;  ///< seconds in which the rank could not go on: no message had come, or all slots were full
};

/// A meter of the channels that a courier has at one rank. What the courier carries between stop() and start(), such
/// as a validation's messages, does not count.
class ChannelMeter {
 public:
  /// Adds the courier's next channel.
  void add(int number, const pipe::Channel& channel) { totals_.push_back({.number = number, .channel = channel}); }
  void start(const ddl::Courier& courier) { before_ = totals_of(courier); }
  void stop(const ddl::Courier& courier);
  /// Returns the totals by channel.
  const std::vector<ChannelMessages>& totals() const { return totals_; }

 private:
  std::vector<ddl::ChannelTotals> totals_of(const ddl::Courier& courier) const;

  std::vector<ChannelMessages> totals_;
  std::vector<ddl::ChannelTotals> before_;  // the courier's, at start()
};

}  // namespace spillway::runtime
