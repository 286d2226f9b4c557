// The time that a rank takes to choose its plan: choose() for a 64 MiB allreduce, the minimum of five runs.
//   build/bin/plan_choice
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "ddl/allreduce/cost_model.h"

int main() {
  using namespace spillway::ddl;
  using Clock = std::chrono::steady_clock;
  for (const auto& [shape, ranks] :
       {std::pair<std::string, int>{"8x1", 8}, {"8x8", 64}, {"64x8", 512}, {"8x128", 1024}}) {
    const Levels levels = Levels::parse(shape, ranks);
    Costs costs{.levels = {{1e-6, 1e-7, 1e10}, {50e-6, 5e-6, 1e9}}, .reduce_seconds_per_byte = 1e-10};
    costs.levels.resize(static_cast<size_t>(levels.count()));
    for (const bool keep_order : {true, false}) {
      std::chrono::duration<double, std::milli> least(1e9);
      for (int i = 0; i < 5; ++i) {
        const auto start = Clock::now();
        (void)choose(levels, int64_t{64} << 20, costs, keep_order);
        least = std::min<std::chrono::duration<double, std::milli>>(least, Clock::now() - start);
      }
      std::printf("%6s %4d ranks  %-18s %8.2f ms\n", shape.c_str(), ranks,
                  keep_order ? "order of sums kept" : "any plan", least.count());
    }
  }
}
