/// Threads for what users attach to futures.
#pragma once
#include <functional>
#include <memory>

namespace spillway::ddl {

/// Runs functions that may wait for anything, such as another collective: each at once, on a thread that nothing else
/// uses meanwhile. Threads are made when none is free, and are kept. Thread-safe.
class CallbackThreads {
 public:
  CallbackThreads();
  /// Waits for the functions that run, but for the one that calls it.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  /// Starts `callback`, which must not throw. Does not wait for it.
  void run(std::function<void()> callback);

  /// Returns true when no function runs on any such thread of this process. Later ones are then kept and never called.
  /// Meant for an interpreter that ends, because a thread that needs it afterwards aborts the process.
  static bool end_all();

 private:
  struct State;
  const std::shared_ptr<State> state_;  ///< shared with the threads, because one of them may end this object
};

}  // namespace spillway::ddl
