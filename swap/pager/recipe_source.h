/// How a step's operators were called, for those that may have to run again.
#pragma once
#include <cstdint>
#include <memory>

#include "swap/pager/page.h"

namespace spillway {

/// What the Conductor asks of whoever sees the calls. Slots are the schedule's.
class RecipeSource {
 public:
  virtual ~RecipeSource() = default;
  /// A new step begins: earlier calls are of no use.
  virtual void clear() noexcept = 0;
  /// What makes `slot`, of all the calls noted for it; nullptr when a call could not be kept.
  virtual std::unique_ptr<ReplayRecipe> take(int32_t slot) = 0;
};

}  // namespace spillway
