#include "swap/shapes/copy_rates.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "core/clock.h"

namespace spillway::swap {

double measure_copy_rate() {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int kCopies = 8;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  const at::Tensor left = at::ones({512, 512}), right = at::ones({512, 512});
  std::atomic<bool> done = false;
  double seconds = 0;
  std::thread copier([&] {
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) std::memcpy(to.data(), from.data(), kBytes);
    seconds = seconds_since(start);
    done = true;
  });
  while (!done) (void)at::mm(left, right);
  copier.join();
  return static_cast<double>(kBytes) * kCopies / seconds;
}

}  // namespace spillway::swap
