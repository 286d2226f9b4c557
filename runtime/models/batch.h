/// The data that one training step consumes.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::runtime {

/// A batch of cases. `input` and `target` share their first dimension, the batch.
/// Volumes: input [B, modalities, D, H, W] float32, target [B, labels, D, H, W] float32 of 0 and 1, or [B, D, H, W]
/// int64 class indices.
/// Images: input [B, 3, H, W] float32, target [B] int64 class indices.
/// Tokens: input [B, L] int64, target [B, 2, K] int64: places in the sequence, and the words that belong there.
/// Vectors: input [B, features] float32, target [B] int64 class indices.
/// Curves: input [B, edge²] float32 in 0 … 1, target [B, 0].
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

}  // namespace spillway::runtime
