/// Recipes that make a page's bytes again, and their source.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "core/memory/device_memory.h"

namespace spillway::swap {

class Pager;

/// Makes a page's bytes again from those of other pages.
class ReplayRecipe {
 public:
  struct Input {
    PageId page;
    uint64_t write_epoch;  ///< write epoch of the bytes that the recipe read
  };
  virtual ~ReplayRecipe() = default;
  /// Returns every page that the recipe reads, each once.
  virtual const std::vector<Input>& inputs() const = 0;
  /// Returns the page's write epoch when its bytes were those that the recipe makes.
  virtual uint64_t write_epoch() const = 0;
  /// Returns a block with the bytes, which becomes the page's. Called without the pager's lock; leases its inputs
  /// meanwhile. The inputs are alive and unchanged. Throws OutOfBudget, or the operators' errors.
  virtual Block* run(Pager& pager) = 0;
};

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
