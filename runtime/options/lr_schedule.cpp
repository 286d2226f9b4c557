#include "runtime/options/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/parse_number.h"

namespace spillway {

std::vector<Decay> parse_decays(std::string_view who, std::string_view text) {
  std::vector<Decay> decays;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t at = part.find('@');
    const bool has_both = at != std::string_view::npos;
    const Decay decay{.factor = has_both ? parse_number<double>(part.substr(0, at)).value_or(0) : 0,
                      .epoch = has_both ? parse_number<int64_t>(part.substr(at + 1)).value_or(0) : 0};
    const bool is_good =
        decay.factor > 0 && std::isfinite(decay.factor) && decay.epoch >= 1 && part.size() + 1 != rest.size();
    if (!is_good)
      throw BadRequest(str(who, " is '", text,
                           "'; write FACTOR@EPOCH,… with factors above 0 and epochs from 1 on, such as 0.1@30,0.1@60"));
    decays.push_back(decay);
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return decays;
}

double LrSchedule::at(int64_t step) const {
  double rate = lr;
  if (step < warmup_steps) rate *= static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  for (const Decay& decay : decays)
    if (step >= first_step_of(decay.epoch)) rate *= decay.factor;
  return rate;
}

int64_t LrSchedule::first_step_of(int64_t epoch) const {
  return std::max<int64_t>(0, epoch * steps_per_epoch - epoch_shift_steps);
}

}  // namespace spillway
