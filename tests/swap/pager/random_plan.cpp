#include "tests/swap/pager/random_plan.h"

#include <chrono>
#include <random>
#include <type_traits>

#include "swap/tiers/disk_tier.h"
#include "tests/support/copies.h"

namespace spillway::testing {
using namespace swap;

Plan plan_of(uint64_t seed, const CaseLimits& limits) {
  std::mt19937_64 random(seed);
  auto pick = [&](auto... choices) {
    const std::common_type_t<decltype(choices)...> all[] = {choices...};
    return all[random() % sizeof...(choices)];
  };
  Plan plan{.seed = seed};
  plan.threads = std::min<int64_t>(limits.parts, pick(1, 1, 2, 3));
  plan.operations = std::min<int64_t>(limits.steps, pick(150, 300, 600));
  plan.sizes = pick(std::vector<int64_t>{1 << 17}, std::vector<int64_t>{104, 5000, 70'000, 1 << 17},
                    std::vector<int64_t>{64 << 10, 96 << 10, 200'000});
  plan.budget_bytes = plan.largest_charge() * (plan.threads * pick(3, 4) + pick(0, 1, 3)) + pick(0, 4096, 50'000);
  if (random() % 8 == 0) plan.host_bytes = plan.largest_charge() * pick(2, 5);
  if (random() % 5 == 0) {
    plan.disk = true;
    plan.host_bytes = DiskTier::kMinHostBytes + plan.largest_charge() * pick(0, 1, 4);
  }
  plan.replays = pick(false, false, true);
  plan.small_bytes = pick(0, 10'000, 1 << 20);
  plan.out = pick(Lane::same_thread, Lane::worker, Lane::delayed, Lane::random, Lane::queued, Lane::flaky);
  plan.in = pick(Lane::same_thread, Lane::worker, Lane::delayed, Lane::random, Lane::queued, Lane::flaky);
  return plan;
}

std::unique_ptr<Timeline> make_lane(Lane lane, uint64_t seed) {
  const auto s = static_cast<uint32_t>(seed);
  const std::chrono::microseconds longest(s % 3 ? 300 : 2000);
  switch (lane) {
    case Lane::same_thread:
      return std::make_unique<SameThreadTimeline>();
    case Lane::worker:
      return std::make_unique<WorkerTimeline>("worker");
    case Lane::delayed:
      return std::make_unique<DelayedTimeline>(s, longest);
    case Lane::random:
      return std::make_unique<RandomTimeline>(s, longest);
    case Lane::queued:
      return std::make_unique<QueuedTimeline>(s, longest);
    case Lane::flaky:
      return std::make_unique<FlakyTimeline>(s, 12);
    case Lane::early_ticket:
      return std::make_unique<EarlyTicketTimeline>();
  }
  return nullptr;
}

}  // namespace spillway::testing
