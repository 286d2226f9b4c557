#include "ddl/comm/watchdog.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace spillway::ddl {
namespace {

constexpr int kCommunicationExitCode = 4;

}  // namespace

Watchdog::Watchdog(std::string call, std::chrono::milliseconds deadline)
    : thread_([call = std::move(call), deadline](const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any ended;
        ended.wait_for(lock, stop, deadline, [] { return false; });
        if (stop.stop_requested()) return;
        std::fprintf(stderr,
                     "[ddl] no answer to %s within %.3g s: another rank, or the launcher, hangs or was stopped\n",
                     call.c_str(), std::chrono::duration<double>(deadline).count());
        std::_Exit(kCommunicationExitCode);
      }) {}

}  // namespace spillway::ddl
