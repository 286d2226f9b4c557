#include "swap/tiers/disk_io.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "swap/tiers/page_file.h"

namespace spillway::swap {

bool DiskOperation::advance(int64_t result) noexcept {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    error = -result;
    return true;
  }
  if (result == 0 && !write) {
    file_ended = true;
    return true;
  }
  if (moved_bytes + result == bytes) {
    moved_bytes = bytes;
    return true;
  }
  // After a short transfer the rest starts on a boundary again, as O_DIRECT demands. A full disk says so at the next
  // attempt.
  const int64_t kept = (moved_bytes + result) / PageFile::kAlignment * PageFile::kAlignment;
  stalls = kept == moved_bytes ? stalls + 1 : 0;
  moved_bytes = kept;
  if (stalls < 3) return false;
  error = EIO;
  return true;
}

namespace {

class ThreadIo final : public DiskIo {
 public:
  explicit ThreadIo(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadIo() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void start(DiskOperation& operation) override {
    {
      std::lock_guard lock(mutex_);
      todo_.push_back(&operation);
    }
    started_.notify_one();
  }
  DiskOperation& wait() override {
    std::unique_lock lock(mutex_);
    over_.wait(lock, [&] { return !done_.empty(); });
    DiskOperation& operation = *done_.front();
    done_.pop_front();
    return operation;
  }
  std::string name() const override { return std::to_string(threads_.size()) + " threads"; }

 private:
  void run() {
    ::pthread_setname_np(::pthread_self(), "disk io");
    std::unique_lock lock(mutex_);
    for (;;) {
      started_.wait(lock, [&] { return stopping_ || !todo_.empty(); });
      if (todo_.empty()) return;
      DiskOperation& op = *todo_.front();
      todo_.pop_front();
      lock.unlock();
      while (!op.advance(attempt(op))) {
      }
      lock.lock();
      done_.push_back(&op);
      over_.notify_one();
    }
  }

  static int64_t attempt(const DiskOperation& op) {
    char* data = op.data + op.moved_bytes;
    const size_t bytes = op.bytes - op.moved_bytes;
    const int64_t offset = op.offset + op.moved_bytes;
    const ssize_t result =
        op.write ? ::pwrite(op.descriptor, data, bytes, offset) : ::pread(op.descriptor, data, bytes, offset);
    return result < 0 ? -errno : result;
  }

  std::mutex mutex_;
  std::condition_variable started_, over_;
  std::deque<DiskOperation*> todo_, done_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskIo> make_thread_io(int threads) {
  return std::make_unique<ThreadIo>(threads);
}

}  // namespace spillway::swap
