/// The running averages of factors, and how they take in new ones.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/stored_matrix.h"

namespace spillway::kfac {

/// A running average F and a new factor.
struct AverageUpdate {
  StoredTriangle running;
  at::Tensor fresh;  ///< [count, side, side], symmetric; overwritten
  double start = 0;  ///< above 0: F starts at start·I, else at the first factor
};

/// Updates running averages: F ← decay·F + (1−decay)·F_new. A zero F stands for a factor that was never seen. Then
/// F ← F_new, or with a `start` F ← decay·start·I + (1−decay)·F_new. An F_new that is not finite is dropped and adds
/// one to `dropped` (a 0-dim int64 tensor). A zero F_new changes nothing. A triangle gets the bits that a whole
/// symmetric matrix would get, whatever else is updated. Decides on the device, for all at once, because a step of
/// small factors takes as long as its operators are many; factors of one shape are packed as one. Workspace: a triangle
/// of each factor and a copy of the matrices of one shape. With 16 bits it is a copy of all that have peers of their
/// shape, and three times one matrix.
void update_running_averages(const std::vector<AverageUpdate>& updates, double decay, const at::Tensor& dropped);

}  // namespace spillway::kfac
