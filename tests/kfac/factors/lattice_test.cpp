#include "kfac/factors/lattice.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "kfac/factors/factors.h"
#include "kfac/kfac.h"
#include "tests/kfac/factors/layer_cases.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kWorkspace = 2000;

/// Returns the product of the sizes.
int64_t product(const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (int64_t size : sizes) all *= size;
  return all;
}

int64_t positions_on(const Lattice& lattice, const std::vector<int64_t>& spatial) {
  int64_t all = 1;
  for (size_t d = 0; d < spatial.size(); ++d) all *= lattice.count(d, spatial[d]);
  return all;
}

/// Calls `take` with every lattice of these steps, wherever it starts.
void for_each_start(const std::vector<int64_t>& step, const std::function<void(const Lattice&)>& take) {
  for (int64_t number = 0; number < product(step); ++number) {
    Lattice lattice{{}, step};
    int64_t rest = number;
    for (int64_t s : step) {
      lattice.start.push_back(rest % s);
      rest /= s;
    }
    take(lattice);
  }
}

/// Returns a layer's sums of input products over one lattice, in the order of LayerShape::factors().
std::vector<at::Tensor> sums_over(const Lattice& lattice, const Captured& seen, const LayerShape& shape) {
  std::vector<at::Tensor> sums;
  for (const auto& factor : shape.factors())
    if (factor.role != FactorRole::output)
      sums.push_back(at::zeros({factor.count, factor.side, factor.side}, at::kDouble));
  if (shape.separable) {
    add_channel_products(sums[0], seen.input, *seen.geometry, lattice, kWorkspace);
    add_offset_products(sums[1], seen.input, *seen.geometry, lattice, kWorkspace);
  } else {
    add_input_products(sums[0], seen.input, seen.geometry, lattice, kWorkspace);
  }
  return sums;
}

/// Compares the mean of the estimates over all starts with the exact sums.
void expect_unbiased(const LayerCase& layer_case, ConvFactors form, int64_t step) {
  const LayerRun run(layer_case);
  const auto layer = find_layers(*run.module, {.conv_factors = form}).layers.at(0);
  install_capture_hooks(run.loss, {{layer.weight.unsafeGetTensorImpl(), 0}}, [&](const Captured& seen) {
    const size_t dims = seen.geometry ? seen.geometry->dims() : 1;
    std::vector<int64_t> steps(dims, step);
    steps.front() += 1;
    const auto exact = sums_over(Lattice::whole(dims), seen, layer.shape);
    auto mean = exact;
    for (auto& sum : mean) sum = at::zeros_like(sum);
    for_each_start(steps, [&](const Lattice& lattice) {
      const auto estimate = sums_over(lattice, seen, layer.shape);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += estimate[i] / static_cast<double>(product(steps));
    });
    for (size_t i = 0; i < mean.size(); ++i)
      EXPECT_LT(largest_difference(mean[i], exact[i]), 1e-12) << layer_case.name << " factor " << i;
  });
  run.loss.backward();
}

/// Returns the most bytes that `work` held at once.
int64_t peak_of(const std::function<void()>& work) {
  auto& ledger = CpuDevice::instance().ledger();
  ledger.reset_peak();
  const int64_t before = ledger.peak_bytes();
  work();
  return ledger.peak_bytes() - before;
}

class LatticeSumsTest : public testing::TestWithParam<LayerCase> {};

}  // namespace

TEST(LatticeTest, KeepsThePositionsThatAreAskedForWhereverItStarts) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> spatial(1 + random() % 3);
    for (auto& size : spatial) size = 1 + random() % 20;
    const int64_t samples = 1 + random() % 3, rows = 1 + random() % 400;
    const auto lattice = sample_lattice(samples, spatial, rows, random());
    for (size_t d = 0; d < spatial.size(); ++d) {
      EXPECT_GE(lattice.start[d], 0);
      EXPECT_LT(lattice.start[d], lattice.step[d]);
    }
    for_each_start(lattice.step, [&](const Lattice& moved) {
      EXPECT_GE(samples * positions_on(moved, spatial), std::min(rows, samples * product(spatial)));
      EXPECT_GE(positions_on(moved, spatial), 1);
    });
  }
}

TEST(LatticeTest, PatchesWithGapsBetweenThemTakeNoMoreThanTheWorkspace) {
  constexpr int64_t kBytes = 64 << 10;
  const auto x = at::rand({1, 8, 48, 48, 48});  // 3.4 MiB
  const Lattice whole = Lattice::whole(3), coarse{{1, 0, 4}, {5, 5, 5}};
  const auto strided = [](int64_t kernel, int64_t stride) {
    return Geometry{{kernel, kernel, kernel}, {stride, stride, stride}, {1, 1, 1}, {1, 1, 1}};
  };
  for (const auto& both : {std::pair(strided(1, 2), whole), std::pair(strided(3, 1), coarse)}) {
    const Geometry& geometry = both.first;
    const Lattice& lattice = both.second;
    const int64_t volume = geometry.kernel_volume();
    const auto a = at::zeros({1, 8 * volume, 8 * volume}), c = at::zeros({1, 8, 8}), k = at::zeros({1, volume, volume});
    EXPECT_LE(peak_of([&] { add_input_products(a, x, &geometry, lattice, kBytes); }), 2 * kBytes);
    EXPECT_LE(peak_of([&] { add_channel_products(c, x, geometry, lattice, kBytes); }), 2 * kBytes);
    EXPECT_LE(peak_of([&] { add_offset_products(k, x, geometry, lattice, kBytes); }), 2 * kBytes);
  }
}

TEST(LatticeTest, IsCoarsestOnTheDimensionsWithMostPositions) {
  const auto cube = sample_lattice(2, std::vector<int64_t>{32, 32, 32}, 1024, 0);
  EXPECT_EQ(cube.step, (std::vector<int64_t>{5, 3, 3}));
  EXPECT_EQ(cube.weight(), 45);
  const auto plate = sample_lattice(1, std::vector<int64_t>{4, 64}, 64, 0);
  EXPECT_EQ(plate.step, (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(sample_lattice(1, std::vector<int64_t>{4, 64}, 256, 0).is_whole());
  EXPECT_TRUE(sample_lattice(1, std::vector<int64_t>{4, 64}, 1000, 0).is_whole());
}

TEST(LatticeTest, MeetsEveryPhaseOfAnInputThatIsUpsampled) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const std::vector<int64_t> spatial{64, 1 + static_cast<int64_t>(random() % 200)};
    const auto lattice = sample_lattice(1, spatial, 20, random());
    for (int64_t step : lattice.step) EXPECT_EQ(step % 2, 1);
  }
}

TEST(LatticeTest, StartsAnywhereEquallyOften) {
  std::map<std::vector<int64_t>, int> starts;
  const int rounds = 4000;
  for (int seed = 0; seed < rounds; ++seed) ++starts[sample_lattice(1, std::vector<int64_t>{9, 9}, 9, seed).start];
  ASSERT_EQ(starts.size(), 9u);
  const double expected = rounds / 9.0;
  for (const auto& [start, count] : starts) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected));
}

TEST_P(LatticeSumsTest, AreTheSumsOverAllPositionsOnAverage) {
  for (int64_t step : {1, 2}) expect_unbiased(GetParam(), ConvFactors::full, step);
}
TEST_P(LatticeSumsTest, AreThePartialTracesOnAverageWhenSeparable) {
  for (int64_t step : {1, 2}) expect_unbiased(GetParam(), ConvFactors::separable, step);
}
INSTANTIATE_TEST_SUITE_P(EveryKind, LatticeSumsTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LatticeSumsTest, AreTheSameForTheSameSeedAndOthersForAnother) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3).padding(1));
  conv->to(at::kDouble);
  const auto layer = find_layers(*conv, {}).layers.at(0);
  const auto x = at::randn({2, 2, 20, 20}, at::kDouble);
  const auto factors_of = [&](FactorSamples samples, uint64_t seed) {
    LayerFactors factors(layer.shape, layer.weight.options(), kWorkspace, Convention::fisher, true, samples);
    const auto loss = conv->forward(x).pow(3).sum();
    install_capture_hooks(loss, {{layer.weight.unsafeGetTensorImpl(), 0}},
                          [&](const Captured& seen) { factors.stage(seen, seed); });
    loss.backward();
    EXPECT_EQ(factors.positions(), 800);
    return factors.finish(2);
  };
  const auto few = FactorSamples::at_least(20);
  EXPECT_TRUE(factors_of(few, 1)[0].equal(factors_of(few, 1)[0]));
  EXPECT_FALSE(factors_of(few, 1)[0].equal(factors_of(few, 2)[0]));
  EXPECT_TRUE(factors_of(few, 1)[1].equal(factors_of(few, 2)[1])) << "G is of all positions";
  const auto exact = factors_of(FactorSamples::exact(), 1);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_TRUE(factors_of(FactorSamples::at_least(800), 1)[i].equal(exact[i]));
    EXPECT_TRUE(factors_of(FactorSamples::automatic(), 1)[i].equal(exact[i])) << "2048 positions are not there";
  }
}

TEST(LatticeSumsTest, ComeToTheExactFactorsByLatticesThatAreDrawnAnewForEachUpdate) {
  torch::manual_seed(2);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3).padding(1));
  conv->to(at::kDouble);
  const auto x = at::randn({2, 2, 16, 16}, at::kDouble);
  const auto factor_after = [&](int steps, FactorSamples samples) {
    Kfac kfac(*conv, {.factor_interval = 1, .inverse_interval = 1, .decay = 0.99, .factor_samples = samples});
    for (int i = 0; i < steps; ++i) backward(kfac, conv->forward(x).pow(2).sum(), 2), kfac.step();
    return kfac.state().factor(0, 0);
  };
  const auto exact = factor_after(1, FactorSamples::exact());
  const auto error = [&](int steps) {
    return (factor_after(steps, FactorSamples::at_least(60)) - exact).norm().item<double>();
  };
  EXPECT_GT(error(1), 0);
  EXPECT_LT(error(150), 0.4 * error(1));
}

TEST(FactorSamplesTest, AreReadAndNamed) {
  for (const char* text : {"exact", "auto", "1", "4096"}) EXPECT_EQ(name(parse_factor_samples(text)), text);
  for (const char* text : {"", "0", "-1", "1.5", "many", "4096x", "99999999999999999999"})
    EXPECT_THROW(parse_factor_samples(text), BadRequest) << text;
  EXPECT_EQ(FactorSamples::automatic().fewest(10), 384);
  EXPECT_EQ(FactorSamples::automatic().fewest(4000), 2000);
  EXPECT_EQ(FactorSamples::at_least(7).fewest(4000), 7);
}

}  // namespace spillway::kfac
