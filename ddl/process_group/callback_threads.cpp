#include "ddl/process_group/callback_threads.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace spillway::ddl {
namespace {

/// Number of functions that were given to run() and have not ended; negative after end_all(). It is the process's, as
/// the interpreter is. A child of fork() has none of the threads.
std::atomic<int64_t> callbacks_under_way = 0;
const int kStartsAnewInChildren = pthread_atfork(nullptr, nullptr, [] { callbacks_under_way = 0; });

/// Counts one more function, unless there are to be no more.
bool may_run() {
  int64_t count = callbacks_under_way;
  while (count >= 0 && !callbacks_under_way.compare_exchange_weak(count, count + 1)) continue;
  return count >= 0;
}

}  // namespace

struct CallbackThreads::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  size_t free = 0;  ///< threads that look for work
  bool ending = false;
  std::vector<std::thread> threads;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      ++free;
      changed.wait(lock, [&] { return ending || !waiting.empty(); });
      --free;
      if (waiting.empty()) return;
      {
        const std::function<void()> callback = std::move(waiting.front());
        waiting.pop_front();
        lock.unlock();
        callback();
      }  // what it holds ends without the lock
      --callbacks_under_way;
      lock.lock();
    }
  }
};

CallbackThreads::CallbackThreads() : state_(std::make_shared<State>()) {}

CallbackThreads::~CallbackThreads() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    threads.swap(state_->threads);
  }
  state_->changed.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id())
      thread.detach();
    else
      thread.join();
  }
}

bool CallbackThreads::end_all() {
  int64_t none = 0;
  return callbacks_under_way.compare_exchange_strong(none, -1) || none < 0;
}

void CallbackThreads::run(std::function<void()> callback) {
  if (!may_run()) {
    // It is never freed, because what it holds may need the interpreter to end.
    (void)std::make_unique<std::function<void()>>(std::move(callback)).release();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(std::move(callback));
    if (state_->waiting.size() > state_->free) state_->threads.emplace_back([state = state_] { state->serve(); });
  }
  state_->changed.notify_one();
}

}  // namespace spillway::ddl
