#include "runtime/options/pipeline_options.h"

#include "core/value_names.h"

namespace spillway {
namespace {

constexpr auto kSchedules = value_names<PipelineSchedule>({{PipelineSchedule::gpipe, "gpipe"},
                                                           {PipelineSchedule::one_forward_one_backward, "1f1b"},
                                                           {PipelineSchedule::interleaved, "interleaved"},
                                                           {PipelineSchedule::zero_bubble, "zb-h1"},
                                                           {PipelineSchedule::chimera, "chimera"},
                                                           {PipelineSchedule::automatic, "auto"}});
constexpr auto kRefreshes = value_names<RefreshTurns>(
    {{RefreshTurns::rolling, "rolling"}, {RefreshTurns::together, "together"}, {RefreshTurns::at_once, "at-once"}});
constexpr auto kKfacWork = value_names<KfacWork>({{KfacWork::bubbles, "bubbles"}, {KfacWork::after, "after"}});

}  // namespace

PipelineSchedule parse_schedule(std::string_view name) {
  return kSchedules.parse("--schedule", name);
}
RefreshTurns parse_refresh(std::string_view name) {
  return kRefreshes.parse("--refresh", name);
}
KfacWork parse_kfac_work(std::string_view name) {
  return kKfacWork.parse("--kfac-work", name);
}

std::string_view name(PipelineSchedule schedule) {
  return kSchedules.name(schedule);
}
std::string_view name(RefreshTurns turns) {
  return kRefreshes.name(turns);
}
std::string_view name(KfacWork work) {
  return kKfacWork.name(work);
}

const std::vector<PipelineSchedule>& schedules_of_same_bits() {
  static const std::vector<PipelineSchedule> all{PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe,
                                                 PipelineSchedule::interleaved, PipelineSchedule::zero_bubble};
  return all;
}

std::string schedule_names() {
  return kSchedules.list();
}
std::string refresh_names() {
  return kRefreshes.list();
}
std::string kfac_work_names() {
  return kKfacWork.list();
}

}  // namespace spillway
