#include "runtime/recording/step_recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace spillway {
using namespace runtime;
namespace {

TEST(StepRecorderTest, KeepsTheJobsOfAllThreadsThatEndWhileItRecords) {
  constexpr int kThreads = 4, kJobs = 500;
  const Ledger ledger("cpu");
  StepRecorder recorder(ledger);
  const auto observer = recorder.record_jobs("gradients", "communication");
  const auto job = [&] { observer(std::chrono::steady_clock::now(), std::chrono::steady_clock::now(), 8); };
  job();  // before
  recorder.start(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < kJobs; ++j) job();
    });
  for (auto& thread : threads) thread.join();
  const StepRecording recording = recorder.stop();
  job();  // after
  EXPECT_EQ(recording.step, 3);
  ASSERT_EQ(recording.events.size(), size_t{kThreads * kJobs});
  for (const TraceEvent& event : recording.events) {
    EXPECT_EQ(event.name, "gradients");
    EXPECT_EQ(event.lane, "communication");
    EXPECT_EQ(event.bytes, 8);
    EXPECT_GE(event.start_seconds, 0);
  }
  recorder.start(4);
  EXPECT_TRUE(recorder.stop().events.empty()) << "late work belongs to no later step";
}

TEST(StepRecorderTest, StepsMayEndWhileOtherThreadsWork) {
  const Ledger ledger("cpu");
  StepRecorder recorder(ledger);
  const auto observer = recorder.record_jobs("factors", "factors");
  std::atomic<bool> done = false;
  std::thread thread([&] {
    while (!done) observer(std::chrono::steady_clock::now(), std::chrono::steady_clock::now(), 1);
  });
  for (int step = 0; step < 200; ++step) {
    recorder.start(step);
    const StepRecording recording = recorder.stop();
    for (const TraceEvent& event : recording.events) EXPECT_LE(event.start_seconds, recording.seconds);
  }
  done = true;
  thread.join();
}

class MemoryDisk final : public swap::DiskIo {
 public:
  void start(swap::DiskOperation&) override {}
  swap::DiskOperation& wait() override { throw std::logic_error("nothing is under way"); }
  std::string name() const override { return "memory"; }
};

TEST(StepRecorderTest, LivesAsLongAsTheLanesAndDisksThatItMade) {
  const Ledger ledger("cpu");
  auto recorder = std::make_shared<StepRecorder>(ledger);
  const std::weak_ptr<StepRecorder> alive = recorder;
  auto lane = recorder->record_lane("copy out");
  auto disk = recorder->record_disk(std::make_unique<MemoryDisk>());
  recorder.reset();  // its Session closes, and another one goes on with the device
  EXPECT_FALSE(alive.expired());
  lane.reset();
  EXPECT_FALSE(alive.expired());
  disk.reset();
  EXPECT_TRUE(alive.expired());
}

TEST(StepRecorderTest, AnOperatorIsCommunicationWhenItSendsMessages) {
  const Ledger ledger("cpu");
  StepRecorder recorder(ledger);
  recorder.start(0);
  const torch::jit::Stack stack;
  for (const char* name : {"spillway::allreduce_", "spillway::eigh", "aten::relu"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    recorder.before(op, stack);
    recorder.after(op, stack);
  }
  const auto events = recorder.stop().events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].lane, "communication");
  EXPECT_EQ(events[1].lane, "compute");
  EXPECT_EQ(events[2].lane, "compute");
}

}  // namespace
}  // namespace spillway
