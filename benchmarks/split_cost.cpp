// The cost of running an operator in windows where the whole operator has room. Each operator of a 3-D U-Net's top
// level runs whole and split, in turns. Columns: seconds whole and split (medians), their ratio.
//     build/bin/split_cost [EDGE [CHANNELS [SPLIT_MIB]]]
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/median.h"
#include "swap/session.h"

namespace {

struct Case {
  std::string name;
  std::function<void()> run;
};

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Case> cases(int64_t edge, int64_t channels) {
  const at::Tensor x = at::rand({1, channels, edge, edge, edge}), wide = at::cat({x, x}, 1), g = at::rand_like(x);
  const at::Tensor w = at::rand({channels, channels, 3, 3, 3}), ww = at::rand({channels, 2 * channels, 3, 3, 3});
  const at::Tensor ones = at::ones({channels}), none, small = at::rand({1, channels, edge / 2, edge / 2, edge / 2});
  const std::array<int64_t, 3> one{1, 1, 1}, zero{0, 0, 0};
  auto backward = [=](const at::Tensor& input, const at::Tensor& weight) {
    return [=] { at::convolution_backward(g, input, weight, {}, one, one, one, false, zero, 1, {true, true, false}); };
  };
  auto [normed, mean, invstd] = at::native_batch_norm(x, ones, ones, none, none, true, 0.1, 1e-5);
  return {{"convolution C to C", [=] { at::conv3d(x, w, {}, one, one); }},
          {"convolution 2C to C", [=] { at::conv3d(wide, ww, {}, one, one); }},
          {"its backward C to C", backward(x, w)},
          {"its backward 2C to C", backward(wide, ww)},
          {"batch norm", [=] { at::native_batch_norm(x, ones, ones, none, none, true, 0.1, 1e-5); }},
          {"its backward",
           [=, mean = mean, invstd = invstd] {
             at::native_batch_norm_backward(g, x, ones, none, none, mean, invstd, true, 1e-5, {true, true, true});
           }},
          {"leaky relu backward", [=] { at::leaky_relu_backward(g, x, 0.01, false); }},
          {"add", [=] { at::add(x, g); }},
          {"cat",
           [=] {
             at::cat({x, g}, 1);
           }},
          {"upsample", [=] {
             at::upsample_nearest3d(small, {edge, edge, edge});
           }}};
}

}  // namespace

int main(int argc, char** argv) {
  auto argument = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const int64_t edge = argument(1, 96), channels = argument(2, 16);
  const int64_t split_bytes = argument(3, spillway::kDefaultSplitBytes >> 20) << 20;
  at::NoGradGuard no_grad;
  const std::vector<Case> all = cases(edge, channels);
  std::vector<std::array<std::vector<double>, 2>> seconds(all.size());
  constexpr int kRounds = 9;
  for (int round = 0; round < kRounds; ++round)
    for (size_t mode : {0, 1}) {
      spillway::Session session({.split_bytes = mode == 1 ? split_bytes : spillway::kUnlimitedBytes});
      for (size_t c = 0; c < all.size(); ++c)
        if (const double s = seconds_of(all[c].run); round > 0) seconds[c][mode].push_back(s);
    }
  std::printf("edge %lld, C = %lld, split above %lld MiB\n", static_cast<long long>(edge),
              static_cast<long long>(channels), static_cast<long long>(split_bytes >> 20));
  for (size_t c = 0; c < all.size(); ++c) {
    const double whole = spillway::median(seconds[c][0]), split = spillway::median(seconds[c][1]);
    std::printf("%-24s %7.1f ms %7.1f ms  %.3f\n", all[c].name.c_str(), whole * 1e3, split * 1e3, split / whole);
  }
}
