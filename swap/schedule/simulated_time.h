/// The time of a simulated step: its operators, a lane of copies in each direction, and its messages.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "swap/schedule/link_rates.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// A clock of seconds that operators and waits move. Copies of one direction follow each other, and so do messages. The
/// time that both take from the cores (LinkRates) makes the next operator longer.
class SimulatedTime {
 public:
  /// Without rates copies take no time.
  explicit SimulatedTime(const LinkRates* rates) : copies_take_time_(rates), rates_(rates ? *rates : LinkRates{}) {}

  /// Begins a step: waits are counted from here.
  void begin_step() {
    began_ = now_;
    copies_waited_ = messages_waited_ = 0;
  }
  double now() const { return now_; }
  double since_begin() const { return now_ - began_; }
  /// Returns the seconds for which this step waited for copies.
  double copies_waited() const { return copies_waited_; }
  /// Returns the seconds for which this step waited for messages.
  double messages_waited() const { return messages_waited_; }
  bool copies_take_time() const { return copies_take_time_; }

  /// Runs an operator of so many seconds.
  void compute(double seconds) { now_ += seconds + std::exchange(debt_, 0); }
  /// Lets time pass without an operator.
  void pass(double seconds) { now_ += seconds; }

  /// Begins a copy out of the device, and returns its end. One that passes the disk is as slow as the slower of both.
  double copy_out(int64_t bytes, bool passes_disk) {
    return occupy(out_free_, bytes, rates_.out_bytes_per_second, passes_disk, rates_.to_disk_bytes_per_second);
  }
  /// Begins a copy into the device, as copy_out().
  double copy_in(int64_t bytes, bool passes_disk) {
    return occupy(in_free_, bytes, rates_.in_bytes_per_second, passes_disk, rates_.from_disk_bytes_per_second);
  }
  /// Waits for a copy that ends at `end`.
  void wait_for_copy(double end) {
    if (end <= now_) return;
    copies_waited_ += end - now_;
    now_ = end;
  }

  /// Hands over a message.
  void send(const Message& message) {
    network_free_ = std::max(now_, network_free_) + message.seconds;
    debt_ += rates_.message_slowdown * message.seconds;
    under_way_.emplace_back(message.before, network_free_);
  }
  /// Waits for the messages that operator `i` needs. They arrive in the order in which they were handed over.
  void wait_for_messages(int32_t i) {
    double arrival = now_;
    std::erase_if(under_way_, [&](const auto& message) {
      if (message.first > i) return false;
      arrival = std::max(arrival, message.second);
      return true;
    });
    const double waited = arrival - now_;
    debt_ = std::max(0.0, debt_ - rates_.message_slowdown * waited);  // waiting leaves the cores to the messages
    messages_waited_ += waited;
    now_ = arrival;
  }

 private:
  double occupy(double& lane_free, int64_t bytes, double rate, bool passes_disk, double disk_rate) {
    const double lane_rate = passes_disk ? std::min(rate, disk_rate) : rate;
    const double seconds = copies_take_time_ ? static_cast<double>(bytes) / lane_rate : 0;
    debt_ += rates_.compute_slowdown * seconds;
    lane_free = std::max(now_, lane_free) + seconds;
    return lane_free;
  }

  const bool copies_take_time_;
  const LinkRates rates_;
  double now_ = 0, began_ = 0;
  double out_free_ = 0, in_free_ = 0, network_free_ = 0;  // when each lane is free again
  double debt_ = 0;                                       // seconds that copies and messages took from the cores
  double copies_waited_ = 0, messages_waited_ = 0;
  std::vector<std::pair<int32_t, double>> under_way_;  // messages: the operator that needs each, and its arrival
};

}  // namespace spillway::swap
