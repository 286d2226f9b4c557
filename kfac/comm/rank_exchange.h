/// The collectives that K-FAC needs; none at all in a single process.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "ddl/comm/element.h"
#include "ddl/torch/comm.h"

namespace spillway::kfac {

/// The collectives of K-FAC over a communicator that may be null. Every rank calls the same functions in the same
/// order. Blocking. Throws ddl::CommError.
class RankExchange {
 public:
  /// Makes an exchange over `comm`. A null `comm` is a world of one rank, in which no collective is called.
  explicit RankExchange(ddl::Comm comm);
  int64_t rank() const { return rank_; }
  int64_t world() const { return world_; }
  const ddl::Comm& comm() const { return comm_; }

  /// Replaces a float32, bfloat16 or float16 vector by its sum or mean over all ranks, in place.
  void reduce_(const at::Tensor& vector, ddl::Reduction reduction) const;
  /// Replaces elements ends[i−1] … ends[i] by their sum or mean over all ranks, in place, on rank homes[i] alone.
  void reduce_at_(const at::Tensor& vector, at::IntArrayRef ends, at::IntArrayRef homes,
                  ddl::Reduction reduction) const;
  /// Copies `root`'s tensors to `members`; a rank that is no member returns at once.
  void broadcast_(at::TensorList tensors, int64_t root, at::IntArrayRef members) const;

  /// Returns every rank's few numbers (as many on each), one rank's behind another's, in rank order.
  std::vector<double> gather(const std::vector<double>& own) const;
  /// Throws BadRequest on every rank when `signature` differs between ranks. The error names two ranks and the second
  /// argument, the thing that they disagree about.
  void require_same(uint64_t signature, const char* what) const;
  /// Calls `check` on every rank. When it throws on some ranks, those get their own exception, and all others
  /// BadRequest.
  void check_together(const std::function<void()>& check) const;

 private:
  ddl::Comm comm_;
  int64_t rank_ = 0;
  int64_t world_ = 1;
};

}  // namespace spillway::kfac
