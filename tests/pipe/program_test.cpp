// Tests that wrong programs are refused by name.
#include "pipe/program.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "pipe/schedules.h"

namespace spillway::pipe {
namespace {

std::string refusal(const StepProgram& program) {
  try {
    check(program);
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const StepProgram& program, const std::string& part) {
  const std::string found = refusal(program);
  EXPECT_NE(found.find(part), std::string::npos) << "'" << found << "' for '" << part << "'";
}

TEST(ProgramTest, EverySchedulePassesItsCheck) {
  for (const StepProgram& program :
       {gpipe(3, 5), one_forward_one_backward(3, 5), interleaved(2, 4, 2), chimera(4, 8), zero_bubble(3, 5)})
    EXPECT_EQ(refusal(program), "");
}

TEST(ProgramTest, AMissingItemIsNamed) {
  StepProgram program = gpipe(2, 2);
  program.items[1].erase(program.items[1].begin());
  expect_refused(program, "forward of stage 1, micro-batch 0 is missing");
  program = zero_bubble(2, 2);
  std::erase(program.items[0], Item{Work::weight_gradient, 0, 1});
  expect_refused(program, "weight gradient of stage 0, micro-batch 1 is missing");
  program = gpipe(2, 2);
  program.items[0].pop_back();
  expect_refused(program, "rank 0 has no update");
}

TEST(ProgramTest, ItemsThatDoNotBelongAreNamed) {
  StepProgram program = gpipe(2, 2);
  program.items[0].insert(program.items[0].begin(), program.items[0].front());
  expect_refused(program, "forward of stage 0, micro-batch 0 is there twice");
  program = gpipe(2, 2);
  program.items[0].insert(program.items[0].begin(), {Work::forward, 2, 0});
  expect_refused(program, "is of no stage");
  program = gpipe(2, 2);
  program.items[0].insert(program.items[0].begin(), {Work::forward, 0, 2});
  expect_refused(program, "or of no micro-batch");
  program = gpipe(2, 2);
  program.items[0].insert(program.items[0].begin(), {Work::forward, 1, 0});
  expect_refused(program, "is on rank 0, and its stage is on rank 1");
  program = gpipe(2, 2);
  program.items[0].insert(program.items[0].begin(), {Work::weight_gradient, 0, 0});
  expect_refused(program, "backward is whole");
  program = gpipe(2, 2);
  program.items[0].push_back({Work::forward, 0, 0});
  expect_refused(program, "");
}

TEST(ProgramTest, RanksThatWaitForEachOtherAreRefused) {
  StepProgram program = gpipe(2, 1);
  std::swap(program.items[1][0], program.items[1][1]);  // its backward before its forward
  expect_refused(program, "for ever: rank 0 before backward of stage 0, micro-batch 0");
}

TEST(ProgramTest, TheEndsOfAChannelHaveOneOrder) {
  StepProgram program = gpipe(2, 2);
  std::swap(program.items[1][0], program.items[1][1]);
  expect_refused(program, "stage 1 takes the activations of stage 0 in another order");
  program = gpipe(2, 2);
  std::swap(program.items[0][2], program.items[0][3]);
  expect_refused(program, "stage 0 takes the errors of stage 1 in another order");
}

TEST(ProgramTest, SizesAreChecked) {
  EXPECT_THROW((void)gpipe(0, 2), BadRequest);
  EXPECT_THROW((void)one_forward_one_backward(2, 0), BadRequest);
  EXPECT_THROW((void)interleaved(2, 4, 0), BadRequest);
}

// A skip connection is an edge like others: its reader waits for it.
TEST(ProgramTest, SkipsAreEdges) {
  StepProgram program = gpipe(3, 2);
  program.graph.edges.push_back({0, 2});
  EXPECT_EQ(refusal(program), "");
  const auto needs = program.needs({Work::forward, 2, 1}, 2);
  EXPECT_EQ(needs, (std::vector<Item>{{Work::forward, 1, 1}, {Work::forward, 0, 1}}));
  const auto back = program.needs({Work::backward, 0, 1}, 0);
  EXPECT_EQ(back, (std::vector<Item>{{Work::forward, 0, 1}, {Work::backward, 1, 1}, {Work::backward, 2, 1}}));
}

}  // namespace
}  // namespace spillway::pipe
