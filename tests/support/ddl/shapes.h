/// The hosts of ranks, for the tests of ddl.
#pragma once
#include <vector>

namespace spillway::ddl::testing {

/// Returns hosts in blocks: 4+2 → 0 0 0 0 1 1.
inline std::vector<int> by_host(const std::vector<int>& widths) {
  std::vector<int> hosts;
  for (size_t host = 0; host < widths.size(); ++host) hosts.insert(hosts.end(), widths[host], static_cast<int>(host));
  return hosts;
}

/// Returns hosts in turn: 4+2 → 0 1 0 1 0 0. Each host gets one rank in turn while it has room.
inline std::vector<int> dealt(std::vector<int> widths) {
  std::vector<int> hosts;
  for (bool any = true; any;) {
    any = false;
    for (size_t host = 0; host < widths.size(); ++host) {
      if (widths[host]-- > 0) {
        hosts.push_back(static_cast<int>(host));
        any = true;
      }
    }
  }
  return hosts;
}

/// Returns every given list of widths in both orders of ranks, by_host() and dealt().
inline std::vector<std::vector<int>> both_orders(const std::vector<std::vector<int>>& widths) {
  std::vector<std::vector<int>> shapes;
  for (const auto& w : widths) {
    shapes.push_back(by_host(w));
    if (dealt(w) != by_host(w)) shapes.push_back(dealt(w));
  }
  return shapes;
}

}  // namespace spillway::ddl::testing
