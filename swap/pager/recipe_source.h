/// The source of recipes: how a step's operators were called, for those that may have to run again.
#pragma once
#include <cstdint>
#include <memory>

#include "swap/pager/page.h"

namespace spillway::swap {

/// The interface by which the Conductor gets recipes from the code that sees the calls. Slots are the schedule's.
class RecipeSource {
 public:
  virtual ~RecipeSource() = default;
  /// Forgets earlier calls, because a new step begins.
  virtual void clear() noexcept = 0;
  /// Returns the recipe that makes `slot`, of all the calls noted for it; nullptr when a call could not be kept.
  virtual std::unique_ptr<ReplayRecipe> take(int32_t slot) = 0;
};

}  // namespace spillway::swap
