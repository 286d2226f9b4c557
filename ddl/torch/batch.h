/// The buffer through which tensors of a GPU go, some MiB at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Elements of a dense tensor, in the order of its memory, and their place in the buffer.
struct Piece {
  at::Tensor tensor;
  Range elements;
  int64_t at = 0;
};

/// The elements that the buffer holds at once, all of one type.
struct Batch {
  std::vector<Piece> pieces;
  int64_t size = 0;  ///< elements of the buffer, including those that are in no piece

  int64_t count() const;
  c10::Device device() const { return pieces[0].tensor.device(); }
  at::ScalarType type() const { return pieces[0].tensor.scalar_type(); }
  /// Returns those elements of the batch that lie in `ranges`, for a batch of one tensor. Ranges are of the tensor's
  /// elements.
  Batch within(const std::vector<Range>& ranges) const;
};

using OnBatch = std::function<void(const Batch&)>;

/// Calls `on_batch` for the tensors of a group of for_each_group(), one behind another, at most kFusionBytes at a time.
void for_each_batch(at::TensorList group, const OnBatch& on_batch);
/// Calls `on_batch` for a vector with its equal_parts() side by side, about kFusionBytes at a time. Every batch has as
/// many blocks of one size as there are parts. Block i holds some elements of part order[i].
void for_each_batch_of_parts(const at::Tensor& vector, std::span<const int> order, const OnBatch& on_batch);

/// Copies every piece to its place in `into`; unpack() copies it back. The buffer's type may be another. The copies run
/// after the work that the current stream holds; the host does not wait.
void pack(const Batch& batch, const at::Tensor& into);
void unpack(const Batch& batch, const at::Tensor& from);

}  // namespace spillway::ddl
