/// How tensors of a card go through a buffer, some MiB at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Elements of a dense tensor, in the order of its memory, and where the buffer has them.
struct Piece {
  at::Tensor tensor;
  Range elements;
  int64_t at = 0;
};

/// What the buffer holds at once, all of one type.
struct Batch {
  std::vector<Piece> pieces;
  int64_t size = 0;  ///< elements of the buffer, those that are in no piece too

  int64_t count() const;
  c10::Device device() const { return pieces[0].tensor.device(); }
  at::ScalarType type() const { return pieces[0].tensor.scalar_type(); }
  /// Of a batch of one tensor: what is in those of its elements.
  Batch within(const std::vector<Range>& ranges) const;
};

using OnBatch = std::function<void(const Batch&)>;

/// A group of for_each_group(), one tensor behind another, at most kFusionBytes at a time.
void for_each_batch(at::TensorList group, const OnBatch& on_batch);
/// A vector, its equal_parts() side by side: every batch has as many blocks of one size as there are parts, block i
/// some of part order[i]. About kFusionBytes at a time.
void for_each_batch_of_parts(const at::Tensor& vector, std::span<const int> order, const OnBatch& on_batch);

/// Copies every piece to its place in `into`, and back. The buffer's type may be another. Behind what the current
/// stream holds; the host does not wait.
void pack(const Batch& batch, const at::Tensor& into);
void unpack(const Batch& batch, const at::Tensor& from);

}  // namespace spillway::ddl
