// Tests of the times of transformer blocks: published ones, and files of the user's own.
#include "benchmarks/reproduce/block_profile.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "tests/runtime/files.h"

namespace spillway::runtime {
namespace {

constexpr const char* kHeader = "bs,time_f,time_b,time_kron,time_inv,time_prec\n";

struct BlockProfileTest : ScratchFolder {
  /// Writes a file and returns its name.
  std::string file_of(const std::string& text) const {
    write_file(dir_ / "times.csv", text);
    return (dir_ / "times.csv").string();
  }
};

void expect_times(const BlockTimes& times, const BlockTimes& expected) {
  EXPECT_EQ(times.forward, expected.forward);
  EXPECT_EQ(times.backward, expected.backward);
  EXPECT_EQ(times.statistics, expected.statistics);
  EXPECT_EQ(times.inversion, expected.inversion);
  EXPECT_EQ(times.preconditioning, expected.preconditioning);
}

TEST_F(BlockProfileTest, HasThePublishedBlocksOnThreeGpus) {
  std::set<std::pair<std::string, std::string>> names;
  for (const BlockProfile& profile : published_profiles()) {
    names.emplace(profile.block, profile.device);
    const bool is_opt = profile.block.starts_with("OPT");
    EXPECT_EQ(profile.by_batch_size.size(), is_opt ? 4 : 7) << profile.block << " on " << profile.device;
    EXPECT_EQ(profile.by_batch_size.rbegin()->first, is_opt ? 8 : 64);
    for (const auto& [size, times] : profile.by_batch_size) {
      EXPECT_GT(times.forward, 0) << profile.block << " on " << profile.device << ", " << size;
      // Once more than a few sequences fill a GPU, a backward takes longer than a forward.
      if (size >= 4) {
        EXPECT_GT(times.backward, times.forward) << profile.block << " on " << profile.device;
      }
    }
    // Inversions and preconditioning do not depend on the size.
    const BlockTimes &least = profile.by_batch_size.begin()->second, &most = profile.by_batch_size.rbegin()->second;
    EXPECT_NEAR(most.inversion / least.inversion, 1, 0.02) << profile.block << " on " << profile.device;
    EXPECT_NEAR(most.preconditioning / least.preconditioning, 1, 0.05) << profile.block << " on " << profile.device;
  }
  EXPECT_EQ(names.size(), 18);
  const BlockTimesSource published;
  expect_times(published.on_p100("BERT-Base", 32), kBertBase);
  expect_times(published.on_p100("BERT-Large", 32), kBertLarge);
  EXPECT_EQ(published.profiles("T5-Large").size(), 3);
}

TEST_F(BlockProfileTest, ReadsColumnsByTheirNames) {
  const BlockProfile profile = read_block_profile(file_of(
      "mem_act,time_prec, bs,time_f,time_b,time_kron,time_inv\r\n900,0,8,1,2,3,4\r\n\r\n901, 5.5,16,1e1,20,30,40\n"));
  ASSERT_EQ(profile.by_batch_size.size(), 2);
  expect_times(profile.at(8), {1, 2, 3, 4, 0});
  expect_times(profile.at(16), {10, 20, 30, 40, 5.5});
  EXPECT_EQ(profile.device, (dir_ / "times.csv").string());
  expect_refusal([&] { profile.at(32); }, {"micro-batches of 32; there are for 8, 16"});
}

TEST_F(BlockProfileTest, RefusesAFileByNameAndLine) {
  const std::pair<std::string, std::string> cases[]{
      {"", "it is empty"},
      {kHeader, "it has no row of times"},
      {"bs,time_f,time_b,time_kron,time_inv\n8,1,2,3,4\n", "no column 'time_prec'"},
      {str(kHeader, "8,1,2,3,4\n"), "line 2 has 5 fields of 6"},
      {str(kHeader, "8,1,2,3,4,5\n8,1,2,3,4,5\n"), "line 3 has micro-batches of 8 again"},
      {str(kHeader, "8.5,1,2,3,4,5\n"), "line 2 has bs '8.5'"},
      {str(kHeader, "0,1,2,3,4,5\n"), "line 2 has bs '0'"},
      {str(kHeader, "8,0,2,3,4,5\n"), "line 2 has time_f '0'; allowed: milliseconds above 0"},
      {str(kHeader, "8,1,-2,3,4,5\n"), "line 2 has time_b '-2'"},
      {str(kHeader, "8,1,2,3ms,4,5\n"), "line 2 has time_kron '3ms'; allowed: milliseconds, 0 or more"},
      {str(kHeader, "8,1,2,3,nan,5\n"), "line 2 has time_inv 'nan'"},
      {str(kHeader, "8,1,2,3,4,\n"), "line 2 has time_prec ''"},
      {str(kHeader, "8,1,2,3,4,1e999\n"), "line 2 has time_prec '1e999'"}};
  for (const auto& [text, why] : cases) {
    const std::string file = file_of(text);
    expect_refusal([&] { read_block_profile(file); }, {file, why});
  }
  expect_refusal([&] { read_block_profile(dir_.string()); }, {"it is a folder"});
  expect_refusal([&] { read_block_profile((dir_ / "no.csv").string()); }, {"no.csv", "No such file"});
}

TEST_F(BlockProfileTest, TakesTablesThatSpreadsheetsSave) {
  const BlockProfile plain = read_block_profile(file_of(str(kHeader, "8,1,2,3,4,5\n")));
  const std::string_view header(kHeader, std::strlen(kHeader) - 1);
  const BlockProfile saved = read_block_profile(file_of(str("\xEF\xBB\xBF", header, "\r\n8,1,2,3,4,5\r\n")));
  EXPECT_EQ(saved.at(8).forward, plain.at(8).forward);
  EXPECT_EQ(saved.by_batch_size.size(), 1u);
}

TEST_F(BlockProfileTest, StandsForAllBlocksWhereItIsTheUsersOwn) {
  const BlockTimesSource own(read_block_profile(file_of(str(kHeader, "32,1,2,3,4,5\n"))));
  EXPECT_TRUE(own.is_own());
  EXPECT_EQ(own.profiles().size(), 1);
  expect_times(own.on_p100("BERT-Large", 32), {1, 2, 3, 4, 5});
  EXPECT_NE(own.describe().find("times.csv"), std::string::npos);
  expect_refusal([&] { own.on_p100("BERT-Large", 8); }, {"micro-batches of 8"});
  expect_refusal([] { BlockTimesSource().profiles("GPT"); }, {"'GPT'"});
}

}  // namespace
}  // namespace spillway::runtime
