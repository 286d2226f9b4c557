/// The inverses that precondition the layers, and those that take their places.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/inverse/layer_inverse.h"
#include "kfac/refresh/layer_batches.h"
#include "kfac/refresh/setup.h"

namespace spillway::kfac {

/// Each layer's inverse in use, and its next one, which a late refresh makes. Both are empty on a rank that is no
/// gradient worker of the layer. The inverses in use of a batch's layers are one behind the other in memory.
class LayerInverses {
 public:
  /// `batches` have every layer once.
  LayerInverses(const Setup& setup, const std::vector<LayerBatch>& batches);

  const LayerInverse& in_use(size_t layer) const { return in_use_[layer]; }
  /// Returns the inverses in use of a batch's layers, as the inverse of LayerBatch::shape.
  const LayerInverse& of_batch(size_t batch) const { return of_batches_[batch]; }
  /// Returns the layer's next inverse; empty while it has none.
  const LayerInverse& next(size_t layer) const { return next_[layer]; }
  /// Returns the inverse that a renewal overwrites: the one in use, or the next one, a copy of it at first.
  LayerInverse& renewed(size_t layer, bool is_late);
  /// Puts the layer's next inverse into use, where it has one.
  void adopt(size_t layer);
  void drop_next(size_t layer) { next_[layer] = {}; }
  /// Notes that tensors of every inverse in use were overwritten from outside.
  void overwritten();
  /// Returns a number that grows whenever the layer's inverse in use changes.
  int64_t version(size_t layer) const { return versions_[layer]; }

 private:
  std::vector<LayerInverse> of_batches_;
  std::vector<LayerInverse> in_use_;  ///< by layer: slices of those of its batch
  std::vector<LayerInverse> next_;
  std::vector<int64_t> versions_;
};

}  // namespace spillway::kfac
