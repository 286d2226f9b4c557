// A temporary folder, and doubles of the disk: one that a test can pause, and one that fails.
#pragma once
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "swap/tiers/disk_io.h"

namespace spillway::testing {
using namespace swap;

/// A new folder that lives as long as this object.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& below = std::filesystem::temp_directory_path()) {
    std::string name = (below / "spillway-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make a folder below " + below.string());
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  /// Returns the names in the folder.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::filesystem::path path_;
};

/// A test's controls over a disk and its record of the disk's work. The test shares it with the disk's engine.
struct DiskSwitch {
  std::mutex mutex;
  std::condition_variable changed;
  bool paused = false;
  int fail_writes = 0;       ///< an errno value, or 0
  int fail_reads = 0;        ///< an errno value, or 0
  int good_reads = 0;        ///< reads that succeed before reads fail
  int refuse_starts = 0;     ///< an errno value with which no operation is started, or 0
  std::string started = "";  ///< a letter for each operation: r or w
  std::chrono::microseconds longest_delay{0};

  void pause(bool value) {
    {
      std::lock_guard lock(mutex);
      paused = value;
    }
    changed.notify_all();
  }
  void fail(int writes, int reads = 0, int reads_before = 0) {
    std::lock_guard lock(mutex);
    fail_writes = writes;
    fail_reads = reads;
    good_reads = reads_before;
  }
  std::string order() {
    std::lock_guard lock(mutex);
    return started;
  }
};

/// An engine that a DiskSwitch controls.
class SwitchedIo final : public DiskIo {
 public:
  SwitchedIo(std::unique_ptr<DiskIo> real, std::shared_ptr<DiskSwitch> control)
      : real_(std::move(real)), control_(std::move(control)) {}

  void start(DiskOperation& operation) override {
    std::unique_lock lock(control_->mutex);
    control_->started += operation.write ? 'w' : 'r';
    control_->changed.notify_all();
    control_->changed.wait(lock, [&] { return !control_->paused; });
    if (control_->longest_delay.count() > 0)
      std::this_thread::sleep_for(control_->longest_delay * (random_() % 1000) / 1000);
    if (control_->refuse_starts)
      throw std::system_error(control_->refuse_starts, std::generic_category(), "told to refuse");
    const bool good = !operation.write && control_->good_reads-- > 0;
    if (int error = operation.write ? control_->fail_writes : control_->fail_reads; error && !good) {
      operation.error = error;
      failed_.push_back(&operation);
    } else {
      real_->start(operation);
    }
  }
  DiskOperation& wait() override {
    if (failed_.empty()) return real_->wait();
    DiskOperation& operation = *failed_.back();
    failed_.pop_back();
    return operation;
  }
  std::string name() const override { return real_->name(); }

 private:
  std::unique_ptr<DiskIo> real_;
  std::shared_ptr<DiskSwitch> control_;
  std::vector<DiskOperation*> failed_;
  std::mt19937 random_{7};
};

/// Returns a DiskOptions::decorate_io that puts the engine under `control`.
inline auto switched(const std::shared_ptr<DiskSwitch>& control) {
  return [control](std::unique_ptr<DiskIo> real) -> std::unique_ptr<DiskIo> {
    return std::make_unique<SwitchedIo>(std::move(real), control);
  };
}

}  // namespace spillway::testing
