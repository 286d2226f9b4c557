#include "runtime/options/lr_schedule.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace spillway {

TEST(LrScheduleTest, IsConstantWhenNothingElseIsAsked) {
  LrSchedule schedule{.lr = 0.3};
  for (int64_t step : {0, 1, 1000}) EXPECT_EQ(schedule.at(step), 0.3);
}

TEST(LrScheduleTest, RisesLinearlyUntilTheLastStepOfTheWarmup) {
  LrSchedule schedule{.lr = 0.8, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.4);
  EXPECT_EQ(schedule.at(3), 0.8);
  EXPECT_EQ(schedule.at(4), 0.8);
}

TEST(LrScheduleTest, CountsTheEpochsOfARunThatHadOtherRanksByTheCasesThatItDrew) {
  // Six steps of two ranks drew as many cases as twelve steps of one rank.
  LrSchedule schedule{.lr = 1, .decays = {{0.5, 1}, {0.5, 2}}, .steps_per_epoch = 10, .epoch_shift_steps = 12 - 6};
  EXPECT_EQ(schedule.first_step_of(1), 4);
  EXPECT_EQ(schedule.at(6), 0.5);
  EXPECT_EQ(schedule.at(13), 0.5);
  EXPECT_EQ(schedule.at(14), 0.25);
  schedule.epoch_shift_steps = 15;
  EXPECT_EQ(schedule.first_step_of(1), 0);
}

TEST(LrScheduleTest, FallsAtTheFirstStepOfEachEpochThatIsNamed) {
  LrSchedule schedule{.lr = 1, .decays = {{0.5, 2}, {0.1, 3}}, .steps_per_epoch = 10};
  EXPECT_EQ(schedule.at(19), 1);
  EXPECT_EQ(schedule.at(20), 0.5);
  EXPECT_EQ(schedule.at(29), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(30), 0.05);
  schedule.warmup_steps = 40;
  EXPECT_DOUBLE_EQ(schedule.at(30), 0.05 * 31 / 40);
}

TEST(ParseDecaysTest, ReadsFactorsAndEpochs) {
  EXPECT_TRUE(parse_decays("--lr-decay", "").empty());
  const std::vector<Decay> decays = parse_decays("--lr-decay", "0.1@30,2e-1@60");
  ASSERT_EQ(decays.size(), 2u);
  EXPECT_EQ(decays[0].factor, 0.1);
  EXPECT_EQ(decays[0].epoch, 30);
  EXPECT_EQ(decays[1].factor, 0.2);
  EXPECT_EQ(decays[1].epoch, 60);
}

TEST(ParseDecaysTest, NamesWhoAndWhatCannotBeRead) {
  for (const char* bad : {"0.1", "@3", "0.1@", "0.1@0", "0@3", "-1@3", "inf@3", "0.1@3,", ",0.1@3", "0.1@3;0.1@4",
                          "0.1@3.5", "0.1@3,,0.1@4"}) {
    try {
      parse_decays("--lr-decay", bad);
      ADD_FAILURE() << "read " << bad;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find("--lr-decay is '" + std::string(bad) + "'"), std::string::npos);
    }
  }
}

}  // namespace spillway
