#include "runtime/data/preprocess.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/error.h"

namespace spillway::runtime {

namespace {

/// Returns the largest power of two up to `value`, which is above 0.
double power_of_two_below(double value) {
  return std::ldexp(1, std::ilogb(value));
}

}  // namespace

at::Tensor normalize_nonzero(const at::Tensor& voxels, std::string_view who) {
  const auto brain = voxels.ne(0);
  const int64_t count = brain.sum().item<int64_t>();
  if (count < 2) throw BadRequest(str(who, ": ", count, " voxels are nonzero; a scan of a brain is needed"));
  const double mean = voxels.sum(at::kDouble).item<double>() / static_cast<double>(count);
  auto centered = voxels.sub(mean).mul_(brain);
  const double largest = centered.abs().max().item<double>();
  if (largest == 0) throw BadRequest(str(who, ": all ", count, " nonzero voxels are ", mean, "; there is no contrast"));
  const int64_t rounded_away = centered.eq(-mean).logical_and_(brain).sum().item<int64_t>();
  if (!std::isfinite(largest) || rounded_away > count / 2)
    throw BadRequest(str(who, ": voxels are from ", voxels.min().item<double>(), " to ", voxels.max().item<double>(),
                         ", and float32 cannot hold what most of them differ by; is the file damaged?"));
  // A power of two changes no digit of the quotient, and keeps the squares within the range of float32.
  centered.div_(power_of_two_below(largest));
  const double variance = centered.square().sum(at::kDouble).item<double>() / static_cast<double>(count);
  return centered.div(std::sqrt(variance));
}

std::optional<int64_t> first_unknown_label(const at::Tensor& labels) {
  const auto whole = labels.round();
  auto known = whole.eq(0).logical_or_(whole.eq(1)).logical_or_(whole.eq(2)).logical_or_(whole.eq(4));
  known.logical_and_(labels.sub(whole).abs_().le(kLabelRounding));
  if (known.all().item<bool>()) return {};
  return known.flatten().logical_not().to(at::kByte).argmax().item<int64_t>();
}

at::Tensor overlapping_labels(const at::Tensor& labels, std::string_view who) {
  if (const auto unknown = first_unknown_label(labels))
    throw BadRequest(str(who, ": label ", labels.flatten()[*unknown].item<double>(), " is none of 0, 1, 2, 4"));
  const auto whole = labels.round();
  const auto core = whole.eq(1), oedema = whole.eq(2), enhancing = whole.eq(4);
  const auto tumour_core = core.logical_or(enhancing);
  return at::stack({tumour_core.logical_or(oedema), tumour_core, enhancing}).to(at::kFloat);
}

at::Tensor fit_center(const at::Tensor& voxels, const Shape3& shape) {
  std::vector<int64_t> pad;  // last dimension first; a negative pad crops
  for (int64_t d = 2; d >= 0; --d) {
    const int64_t missing = shape[d] - voxels.size(d - 3);
    pad.push_back(missing / 2);
    pad.push_back(missing - missing / 2);
  }
  return at::constant_pad_nd(voxels, pad, 0);
}

Batch assemble_case(const std::array<at::Tensor, 4>& scans, const at::Tensor& labels, const Shape3& shape,
                    std::string_view who) {
  std::vector<at::Tensor> channels;
  for (size_t m = 0; m < scans.size(); ++m)
    channels.push_back(fit_center(normalize_nonzero(scans[m], str(who, " ", kModalities[m])), shape));
  auto target = fit_center(overlapping_labels(labels, str(who, " seg")), shape);
  return {at::stack(channels).unsqueeze(0), target.unsqueeze(0)};
}

}  // namespace spillway::runtime
