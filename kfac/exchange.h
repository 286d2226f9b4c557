/// The collectives that K-FAC needs; none at all in a single process.
#pragma once
#include <ATen/core/Tensor.h>

#include "ddl/operators.h"

namespace spillway::kfac {

/// Every rank calls the same functions in the same order. Blocking. Throws ddl::CommError.
class Exchange {
 public:
  /// A null `comm` is a world of one rank, in which nothing is called. Tensors must be float32 where world > 1.
  explicit Exchange(ddl::Comm comm);
  int64_t rank() const { return rank_; }
  int64_t world() const { return world_; }

  /// The mean over all ranks, in place.
  void average_(at::TensorList tensors) const;
  /// Copies `root`'s tensors to `members`; a rank that is no member returns at once.
  void broadcast_(at::TensorList tensors, int64_t root, at::IntArrayRef members) const;

 private:
  ddl::Comm comm_;
  int64_t rank_ = 0;
  int64_t world_ = 1;
};

}  // namespace spillway::kfac
