// Tests of operators' times from marks on a stream, with times in seconds as events.
#include "core/device/compute_marks.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace spillway {
namespace {

using Mark = ComputeMark<double>;
using Kind = Mark::Kind;

std::vector<ComputeClock::Times> times(const std::vector<Mark>& marks) {
  return times_of(marks, [](double from, double to) { return to - from; });
}

TEST(ComputeMarksTest, AnOperatorTakesWhatLiesBetweenItsMarks) {
  const auto found = times({{Kind::begin, 1}, {Kind::end, 3}, {Kind::begin, 3.5}, {Kind::end, 4}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_DOUBLE_EQ(found[0].seconds, 2);
  EXPECT_DOUBLE_EQ(found[0].gap_seconds, 0);
  EXPECT_DOUBLE_EQ(found[1].seconds, 0.5);
  EXPECT_DOUBLE_EQ(found[1].gap_seconds, 0.5);
}

TEST(ComputeMarksTest, StallsBelongToNoOperatorAndToNoGap) {
  const auto found = times(
      {{Kind::begin, 0}, {Kind::stall, 1, 3}, {Kind::end, 5}, {Kind::stall, 6, 8}, {Kind::begin, 9}, {Kind::end, 10}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_DOUBLE_EQ(found[0].seconds, 3);
  EXPECT_DOUBLE_EQ(found[1].gap_seconds, 2);
}

TEST(ComputeMarksTest, AnEndWithoutABeginIsOfAStepBefore) {
  EXPECT_TRUE(times({{Kind::end, 2}}).empty());
  EXPECT_EQ(times({{Kind::end, 2}, {Kind::begin, 3}, {Kind::end, 4}}).size(), 1u);
  EXPECT_TRUE(times({{Kind::begin, 3}}).empty());
}

TEST(ComputeMarksTest, AnEventThatIsNotDoneIsWaitedFor) {
  bool done = false;
  int waits = 0;
  const auto elapsed = [&] { return done ? std::optional(0.25) : std::nullopt; };
  const auto wait = [&] {
    ++waits;
    done = true;
  };
  EXPECT_DOUBLE_EQ(seconds_when_done(elapsed, wait), 0.25);
  EXPECT_DOUBLE_EQ(seconds_when_done(elapsed, wait), 0.25);
  EXPECT_EQ(waits, 1);
  EXPECT_DOUBLE_EQ(seconds_when_done([] { return std::optional(-1e-6); }, wait), 0) << "clocks of events may disagree";
}

}  // namespace
}  // namespace spillway
