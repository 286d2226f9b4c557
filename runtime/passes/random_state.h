/// The states of random generators, for work that is to draw the same numbers again.
#pragma once
#include <ATen/Context.h>

#include <mutex>
#include <utility>
#include <vector>

namespace spillway::runtime {

/// The states, at construction, of the generators that operators on a device draw from: the CPU's, and the device's
/// own. Kept in copies of the generators, which no budget counts.
class RandomState {
 public:
  explicit RandomState(const c10::Device& device) {
    add(c10::Device(c10::kCPU));
    if (!device.is_cpu()) add(device);
  }
  /// Sets the generators back to these states.
  void restore() const {
    for (const auto& [generator, copy] : generators_) {
      at::Generator live = generator;
      const at::Tensor state = copy.get_state();
      const std::lock_guard lock(live.mutex());
      live.set_state(state);
    }
  }

 private:
  void add(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generators_.emplace_back(generator, generator.clone());
  }

  std::vector<std::pair<at::Generator, at::Generator>> generators_;  ///< the live one, and its copy
};

}  // namespace spillway::runtime
