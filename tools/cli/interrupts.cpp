#include "tools/cli/interrupts.h"

#include <atomic>

namespace spillway::tools {
namespace {

std::atomic<bool> told_to_end = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

}  // namespace

InterruptsNoted::InterruptsNoted() {
  struct sigaction action {};
  action.sa_handler = [](int) { told_to_end = true; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  ::sigaction(SIGINT, &action, &interrupt_before_);
  ::sigaction(SIGTERM, &action, &end_before_);
}

InterruptsNoted::~InterruptsNoted() {
  ::sigaction(SIGINT, &interrupt_before_, nullptr);
  ::sigaction(SIGTERM, &end_before_, nullptr);
}

bool interrupted() noexcept {
  return told_to_end;
}

void report_file_size_limits() {
  std::signal(SIGXFSZ, [](int) {});  // exec() would keep SIG_IGN
}

}  // namespace spillway::tools
