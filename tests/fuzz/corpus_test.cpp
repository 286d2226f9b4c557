// Every build reads the fuzzers' findings and what they start from.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
namespace {

struct Target {
  const char* name;
  void (*run)(std::string_view);
};

class CorpusTest : public ::testing::TestWithParam<Target> {};

std::vector<std::filesystem::path> files_of(const char* target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(SPILLWAY_FUZZ_CORPUS) / target))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_P(CorpusTest, EveryInputIsReadOrRefused) {
  const auto files = files_of(GetParam().name);
  EXPECT_FALSE(files.empty());
  for (const auto& file : files) {
    SCOPED_TRACE(file.string());
    std::ifstream in(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(in), {}};
    EXPECT_NO_THROW(GetParam().run(input));
  }
}

TEST_P(CorpusTest, SoIsEveryBeginningOfThem) {
  for (const auto& file : files_of(GetParam().name)) {
    SCOPED_TRACE(file.string());
    std::ifstream in(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(in), {}};
    const size_t step = input.size() / 64 + 1;
    for (size_t length = 0; length < input.size(); length += step)
      EXPECT_NO_THROW(GetParam().run(std::string_view(input).substr(0, length))) << length << " bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(All, CorpusTest,
                         ::testing::Values(Target{"addresses", addresses}, Target{"batch_systems", batch_systems},
                                           Target{"connections", connections},
                                           Target{"curvature_plans", curvature_plans}, Target{"host_lists", host_lists},
                                           Target{"link_costs", link_costs}, Target{"machine_import", machine_import},
                                           Target{"machine_xml", machine_xml}, Target{"nifti", nifti},
                                           Target{"notices", notices}, Target{"page_files", page_files},
                                           Target{"reports", reports}, Target{"safetensors", safetensors},
                                           Target{"sizes", sizes}, Target{"words", words}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace spillway::fuzz
