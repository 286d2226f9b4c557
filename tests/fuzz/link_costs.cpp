#include <nlohmann/json.hpp>

#include "ddl/topology/link_cost_file.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {

void link_costs(std::string_view input) {
  static const ddl::Levels levels = ddl::Levels::parse("2x2", 4);
  static const nlohmann::json of{{"hosts", {"a", "b"}}, {"levels", levels.labels()}, {"mpi", "some"}};
  taken([&] {
    const auto costs = ddl::parse_link_costs(input, of, levels);
    if (!costs) return;
    const auto again = ddl::parse_link_costs(ddl::format_link_costs(of, *costs), of, levels);
    require(again && again->costs.levels.size() == 2 && again->measured_at == costs->measured_at,
            "costs are remembered");
    for (size_t i = 0; i < 2; ++i)
      require(again->costs.levels[i].segment_bytes == costs->costs.levels[i].segment_bytes &&
                  again->costs.levels[i].bytes_per_second == costs->costs.levels[i].bytes_per_second,
              "costs are remembered as they are");
    (void)ddl::choose(levels, 1 << 20, costs->costs, false);
  });
}

}  // namespace spillway::fuzz
