#include "core/host/in_child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/refusal.h"

namespace spillway {
namespace {

using namespace std::chrono_literals;
using testing::expect_refusal;

TEST(InChildTest, GivesBackWhatTheChildSays) {
  const pid_t own = ::getpid();
  EXPECT_EQ(in_child([] { return std::string(); }, 60s), "");
  EXPECT_NE(in_child([] { return std::to_string(::getpid()); }, 60s), std::to_string(own));
  std::string large(1 << 20, 'x');
  EXPECT_EQ(in_child([&] { return large; }, 60s), large);
}

TEST(InChildTest, RefusesAsTheChildDoes) {
  expect_refusal([] { in_child([]() -> std::string { throw BadRequest("it is wrong"); }, 60s); }, {"it is wrong"});
}

TEST(InChildTest, ACrashAnExitOrAHangIsTheChildsAlone) {
  for (const int number : {SIGSEGV, SIGABRT, SIGKILL})
    expect_refusal([&] { in_child([&] { return ::raise(number), std::string("no"); }, 60s); }, {"crashed"});
  expect_refusal([] { in_child([] { return ::_exit(0), std::string("no"); }, 60s); }, {"exit code 0"});
  expect_refusal([] { in_child([] { return ::pause(), std::string("no"); }, 50ms); }, {"took too long"});
}

}  // namespace
}  // namespace spillway
