#include "runtime/pipeline/channel_meter.h"

#include <chrono>

namespace spillway::runtime {

std::vector<ddl::ChannelTotals> ChannelMeter::totals_of(const ddl::Courier& courier) const {
  std::vector<ddl::ChannelTotals> all;
  for (size_t channel = 0; channel < totals_.size(); ++channel) all.push_back(courier.totals(channel));
  return all;
}

void ChannelMeter::stop(const ddl::Courier& courier) {
  const std::vector<ddl::ChannelTotals> now = totals_of(courier);
  for (size_t channel = 0; channel < now.size(); ++channel) {
    const ddl::ChannelTotals& before = before_[channel];
    totals_[channel].bytes += (now[channel].messages - before.messages) * courier.channels()[channel].bytes;
    totals_[channel].waited += std::chrono::duration<double>(now[channel].waited - before.waited).count();
  }
}

}  // namespace spillway::runtime
