/// The factor A of a stride-1 convolution without patches: the input's products with its own shifts.
///
/// For offsets κ, κ' of the kernel, [κ−p, κ−p+O) is the window of input positions that κ sees, and δ = κ'−κ:
///   A[κ,κ'] = Σ_{u in window} x(u) x(u+δ)ᵀ.
/// All windows of one δ share S(δ) = Σ over every u with u and u+δ inside the input. A window leaves out whole planes
/// near the border. They are subtracted by inclusion and exclusion over the dimensions:
///   A[κ,κ'] = Σ_{planes fixed in a subset m of the dimensions, among those left out} (−1)^|m| S(δ | fixed planes).
/// S(δ) is one product of a zero-padded flat copy with itself, moved by δ's flat offset. Exact.
#pragma once
#include <ATen/core/Tensor.h>

#include "kfac/factors/conv_geometry.h"

namespace spillway::kfac {

/// True when the method without patches applies (stride 1) and is estimated to be faster. `summed_over_channels` says
/// whether the sum over channels or all channel pairs are formed. False on a GPU, where its many small operators take
/// longer than the products over patches. Decides by shapes and device alone, so that every rank and every budget
/// decides alike.
bool prefers_shifts(const at::Tensor& input, const Geometry& geometry, bool summed_over_channels);

/// Adds the blocks of all offset pairs of `input` [batch, channels, *spatial] to `sum`
/// [channels, volume, channels, volume], a view. Returns the floating-point operations of its products. The flat copy
/// takes `workspace_bytes` at most, or one plane and its halo.
double add_shifted_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                            int64_t workspace_bytes);

/// Adds the blocks of all offset pairs, summed over channels, to `sum` [volume, volume]. Returns the floating-point
/// operations of its products. The flat copy takes `workspace_bytes` at most, or one channel of one sample.
double add_shifted_dots(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                        int64_t workspace_bytes);

/// Returns Σ of each row of the patches over all output positions: [channels · volume], type `dtype`. Stride 1.
at::Tensor shifted_sums(const at::Tensor& input, const Geometry& geometry, at::ScalarType dtype);

}  // namespace spillway::kfac
