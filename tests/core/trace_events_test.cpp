#include "core/trace_events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace spillway {

TEST(TraceEventsTest, WritesOneThreadPerLane) {
  TraceEvents events;
  auto now = std::chrono::steady_clock::now();
  events.add("conv \"3d\"", "compute", now, now + std::chrono::milliseconds(2), 7);
  events.add("page", "copy out", now, now);
  events.add("relu", "compute", now, now);
  std::ostringstream out;
  events.write_chrome_json(out);
  auto trace = nlohmann::json::parse(out.str())["traceEvents"];
  ASSERT_EQ(trace.size(), 5u);  // two lanes named, three events
  EXPECT_EQ(trace[1]["name"], "conv \"3d\"");
  EXPECT_NEAR(trace[1]["dur"].get<double>(), 2000, 1);
  EXPECT_EQ(trace[1]["tid"], trace[4]["tid"]);
  EXPECT_NE(trace[1]["tid"], trace[3]["tid"]);
}

TEST(TraceEventsTest, CountsWhatItDropsBeyondItsLimit) {
  TraceEvents events(1);
  auto now = std::chrono::steady_clock::now();
  events.add("a", "x", now, now);
  events.add("b", "x", now, now);
  EXPECT_EQ(events.events().size(), 1u);
  EXPECT_EQ(events.dropped(), 1u);
}

}  // namespace spillway
