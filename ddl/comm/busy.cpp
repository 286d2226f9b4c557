#include "ddl/comm/busy.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "core/clock.h"
#include "ddl/comm/notice_board.h"

namespace spillway::ddl {
namespace {

using std::chrono::milliseconds;

/// The longest time between two looks at notices by a busy rank. It looks because other ranks may call the roll.
constexpr milliseconds kMaxSilent{100};

void keep_telling(NoticeBoard& board, milliseconds interval, milliseconds at_most, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  const auto end = Clock::now() + at_most;
  for (auto next = Clock::now() + interval; !stop.stop_requested() && !board.dead() && Clock::now() < end;) {
    stopped.wait_until(lock, stop, std::min(next, Clock::now() + kMaxSilent), [] { return false; });
    if (stop.stop_requested()) return;
    board.look("beside its own work");
    if (Clock::now() < next) continue;
    board.tell_busy();
    next = Clock::now() + interval;
  }
}

}  // namespace

Busy::Busy(const Communicator* comm, milliseconds at_most) {
  if (!comm || comm->size() == 1) return;
  const milliseconds interval = std::max(comm->deadline() / 8, milliseconds(1));
  thread_ = std::jthread([board = comm->board_, interval, at_most](const std::stop_token& stop) {
    keep_telling(*board, interval, at_most, stop);
  });
}

}  // namespace spillway::ddl
