#include "ddl/process_group/callback_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace spillway::ddl {

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

void CallbackThreads::run(std::function<void()> callback) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(std::move(callback));
    if (state_->waiting.size() > state_->free) state_->threads.emplace_back([state = state_] { state->serve(); });
  }
  state_->changed.notify_one();
}

}  // namespace spillway::ddl
