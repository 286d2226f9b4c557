/// The states of random generators, for work that is to draw the same numbers again.
#pragma once
#include <ATen/Context.h>

#include <mutex>
#include <utility>
#include <vector>

namespace spillway {

/// The states, at construction, of the generators that operators on a device draw from: the CPU's, and the device's
/// own.
class RandomState {
 public:
  explicit RandomState(const c10::Device& device) {
    add(c10::Device(c10::kCPU));
    if (!device.is_cpu()) add(device);
  }
  /// Sets the generators back to these states.
  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      std::lock_guard lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  void add(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace spillway
