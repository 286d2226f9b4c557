#include "runtime/data/phantom.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <system_error>

#include "core/error.h"
#include "runtime/data/generator.h"
#include "runtime/data/preprocess.h"
#include "runtime/io/nifti.h"

namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;

constexpr int64_t kMinExtent = 8;
constexpr double kFieldOfViewMm = 240;

enum Tissue : int64_t { kAir, kFluid, kGrey, kWhite, kVessel, kOedema, kCore, kRim, kTissues };

// Relative brightness. Rows: flair, t1, t1ce, t2. Columns: the tissues above.
constexpr std::array<float, 4 * kTissues> kContrast = {0, 0.15f, 0.56f, 0.46f, 0.40f, 0.82f, 0.50f, 0.66f,  //
                                                       0, 0.20f, 0.50f, 0.70f, 0.55f, 0.46f, 0.30f, 0.50f,  //
                                                       0, 0.20f, 0.52f, 0.70f, 0.98f, 0.46f, 0.32f, 0.95f,  //
                                                       0, 0.95f, 0.60f, 0.44f, 0.30f, 0.80f, 0.78f, 0.62f};

/// Random draws for one head, in a fixed order.
class Draws {
 public:
  Draws(const Shape3& shape, uint64_t seed, int64_t index) : shape_(shape), generator_(make_generator(seed, index)) {}

  double uniform(double low, double high) {
    return low + (high - low) * at::rand({1}, generator_, at::kDouble).item<double>();
  }
  /// Makes a random field [D, H, W], about N(0, 1), that is smooth over 2 / (cells − 1) of the volume.
  at::Tensor field(int64_t cells) {
    auto coarse = at::randn({1, 1, cells, cells, cells}, generator_);
    return at::upsample_trilinear3d(coarse, shape_, /*align_corners=*/true)[0][0];
  }
  at::Tensor white_noise() { return at::randn({4, shape_[0], shape_[1], shape_[2]}, generator_); }

 private:
  Shape3 shape_;
  at::Generator generator_;
};

/// Returns coordinates in [-1, 1] that broadcast to [D, H, W].
std::array<at::Tensor, 3> coordinates(const Shape3& shape) {
  auto axis = [&](size_t d) { return at::linspace(-1, 1, shape[d], at::kFloat); };
  return {axis(0).view({-1, 1, 1}), axis(1).view({1, -1, 1}), axis(2).view({1, 1, -1})};
}

/// Returns the square root of Σ ((p − center) / radius)²: below 1 inside the ellipsoid.
at::Tensor ellipsoid(const std::array<at::Tensor, 3>& p, const std::array<double, 3>& center,
                     const std::array<double, 3>& radius) {
  auto term = [&](size_t d) { return ((p[d] - center[d]) / radius[d]).square(); };
  return (term(0) + term(1) + term(2)).sqrt_();
}

/// Returns the tissues of a healthy head: [D, H, W] int64, whose nonzero voxels are the head's mask.
at::Tensor healthy_head(const std::array<at::Tensor, 3>& p, Draws& draw) {
  std::array<double, 3> radius = {0.80, 0.92, 0.74};
  for (double& r : radius) r *= draw.uniform(0.94, 1.04);
  auto depth = ellipsoid(p, {0, 0, 0}, radius).add_(draw.field(5), 0.02);
  auto tissue = at::full(depth.sizes(), static_cast<int64_t>(kWhite), at::kLong);
  auto paint = [&](const at::Tensor& where, Tissue what) { tissue.masked_fill_(where, static_cast<int64_t>(what)); };
  paint(depth.gt(draw.field(14).mul_(0.12).add_(0.80)), kGrey);   // the cortex, folded
  paint(depth.gt(draw.field(14).mul_(0.04).add_(0.95)), kFluid);  // between the folds
  const std::array<at::Tensor, 3> mirrored = {p[0], p[1], p[2].abs()};
  const double tilt = draw.uniform(-0.05, 0.10);
  auto ventricles = ellipsoid(mirrored, {tilt, 0.02, 0.13}, {0.15, 0.36, 0.075});
  paint(ventricles.add_(draw.field(9), 0.10).lt(1), kFluid);
  paint(draw.field(18).gt(1.6), kVessel);
  paint(depth.ge(1), kAir);
  return tissue;
}

/// Paints the tumor over `tissue`, inside the head, and returns its labels [D, H, W] uint8.
at::Tensor grow_tumour(const std::array<at::Tensor, 3>& p, Draws& draw, at::Tensor& tissue) {
  const double size = draw.uniform(0.28, 0.42);
  std::array<double, 3> center{}, radius{};
  for (size_t d = 0; d < 3; ++d) {
    center[d] = draw.uniform(-0.36, 0.36);
    radius[d] = size * draw.uniform(0.8, 1.25);
  }
  auto distance = ellipsoid(p, center, radius).add_(draw.field(8), 0.10);
  const auto inside = tissue.ne(static_cast<int64_t>(kAir));
  auto labels = at::zeros(tissue.sizes(), at::kByte);
  struct Zone {
    double limit;
    Tissue tissue;
    int64_t label;
  };
  for (const auto& zone : {Zone{1.0, kOedema, 2}, Zone{draw.uniform(0.60, 0.70), kRim, 4}, Zone{0.42, kCore, 1}}) {
    const auto where = distance.lt(zone.limit).logical_and_(inside);
    tissue.masked_fill_(where, static_cast<int64_t>(zone.tissue));
    labels.masked_fill_(where, zone.label);
  }
  return labels;
}

/// Returns scan = gain · (blur(contrast[tissue]) · exp(bias) + noise), rounded, at least 1 inside the head.
at::Tensor image(const at::Tensor& tissue, Draws& draw) {
  const auto inside = tissue.ne(static_cast<int64_t>(kAir));
  auto contrast = at::tensor(at::ArrayRef<float>(kContrast.data(), kContrast.size())).view({4, kTissues});
  auto scans = contrast.index_select(1, tissue.flatten()).view({4, 1, tissue.size(0), tissue.size(1), tissue.size(2)});
  scans = at::avg_pool3d(scans, {3}, {1}, {1}).squeeze(1);
  for (int64_t m = 0; m < 4; ++m) scans.select(0, m).mul_(draw.field(3).mul_(0.15).exp_());
  scans.add_(draw.white_noise(), 0.06);
  for (int64_t m = 0; m < 4; ++m) scans.select(0, m).mul_(draw.uniform(300, 900));
  return scans.round_().clamp_(1, 32767).mul_(inside).to(at::kShort);
}

/// Makes `dir` and checks that it holds nothing but this run's cases.
void prepare_folder(const Path& dir, int64_t cases) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error || !std::filesystem::is_directory(dir))
    throw BadRequest(str("cannot make the folder '", dir.string(), "': ", error ? error.message() : "it is a file"));
  std::set<std::string> own;
  for (int64_t i = 0; i < cases; ++i) own.insert(phantom_name(i));
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    if (!own.contains(entry.path().filename().string()))
      throw BadRequest(str("folder '", dir.string(), "' already holds '", entry.path().filename().string(),
                           "', which is none of the ", cases, " phantoms to write; name a new or empty folder"));
}

}  // namespace

Phantom make_phantom(const Shape3& shape, uint64_t seed, int64_t index) {
  if (*std::min_element(shape.begin(), shape.end()) < kMinExtent)
    throw BadRequest(str("phantom: shape ", format_shape(shape), "; every extent must be ", kMinExtent, " or more"));
  Draws draw(shape, seed, index);
  const auto p = coordinates(shape);
  auto tissue = healthy_head(p, draw);
  auto labels = grow_tumour(p, draw, tissue);
  return {image(tissue, draw), labels};
}

std::string phantom_name(int64_t index) {
  char name[40];
  std::snprintf(name, sizeof name, "phantom_%04lld", static_cast<long long>(index) + 1);
  return name;
}

void write_phantoms(const Path& dir, int64_t cases, int64_t edge, uint64_t seed, const PhantomProgress& progress) {
  if (cases < 1) throw BadRequest(str("phantom: cases is ", cases, "; allowed is 1 or more"));
  if (edge < kMinExtent || edge > 1024)
    throw BadRequest(str("phantom: edge is ", edge, "; allowed is ", kMinExtent, " to 1024"));
  prepare_folder(dir, cases);
  const double mm = kFieldOfViewMm / static_cast<double>(edge);
  for (int64_t i = 0; i < cases; ++i) {
    const auto name = phantom_name(i);
    const Path folder = dir / name;
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    if (error) throw BadRequest(str("cannot make the folder '", folder.string(), "': ", error.message()));
    const Phantom phantom = make_phantom({edge, edge, edge}, seed, i);
    for (size_t m = 0; m < kModalities.size(); ++m)
      write_nifti(folder / str(name, "_", kModalities[m], ".nii.gz"), phantom.scans[m], {mm, mm, mm}, at::kShort);
    write_nifti(folder / str(name, "_seg.nii.gz"), phantom.labels, {mm, mm, mm}, at::kByte);
    if (progress) progress(i + 1, cases);
  }
}

}  // namespace spillway::runtime
