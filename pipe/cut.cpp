#include "pipe/cut.h"

#include <algorithm>
#include <tuple>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::pipe {
namespace {

constexpr double kNoCut = std::numeric_limits<double>::infinity();

/// The best cut of the first parts into some stages.
struct Best {
  double longest = kNoCut, squares = kNoCut;
  int begin = 0;  ///< first part of the last stage
};

bool is_better(const Best& a, const Best& b) {
  return std::tie(a.longest, a.squares) < std::tie(b.longest, b.squares);
}

/// Cuts the parts within a limit. Returns nothing where no cut is within it.
std::vector<int> cut_within(std::span<const Part> parts, int stages, int64_t bytes_limit) {
  const int count = static_cast<int>(parts.size());
  std::vector<std::vector<Best>> best(stages + 1, std::vector<Best>(count + 1));
  best[0][0] = {0, 0, 0};
  for (int stage = 1; stage <= stages; ++stage)
    for (int end = stage; end <= count; ++end) {
      double seconds = 0;
      int64_t bytes = 0;
      // From short last stages to long ones, so that the latter win where both are as good.
      for (int begin = end; begin-- > stage - 1;) {
        seconds += parts[begin].seconds;
        bytes += parts[begin].bytes;
        if (bytes > bytes_limit) break;
        const Best& before = best[stage - 1][begin];
        const Best found{std::max(before.longest, seconds), before.squares + seconds * seconds, begin};
        if (before.longest < kNoCut && !is_better(best[stage][end], found)) best[stage][end] = found;
      }
    }
  if (best[stages][count].longest == kNoCut) return {};
  std::vector<int> sizes;
  for (int stage = stages, end = count; stage > 0; --stage) {
    const int begin = best[stage][end].begin;
    sizes.push_back(end - begin);
    end = begin;
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

/// Returns the least limit that some cut is within.
int64_t least_limit(std::span<const Part> parts, int stages) {
  std::vector<Part> by_bytes;
  for (const Part& part : parts) by_bytes.push_back({static_cast<double>(part.bytes), part.bytes});
  int64_t least = 0;
  size_t first = 0;
  for (int size : cut_within(by_bytes, stages, std::numeric_limits<int64_t>::max())) {
    int64_t bytes = 0;
    for (int i = 0; i < size; ++i) bytes += parts[first++].bytes;
    least = std::max(least, bytes);
  }
  return least;
}

}  // namespace

std::vector<int> cut(std::span<const Part> parts, int stages, int64_t bytes_limit) {
  if (stages < 1 || stages > std::ssize(parts))
    throw BadRequest(str("[pipe] a model of ", parts.size(), " parts cannot be cut into ", stages, " stages"));
  std::vector<int> sizes = cut_within(parts, stages, bytes_limit);
  if (sizes.empty())
    throw BadRequest(str("[pipe] no cut into ", stages, " stages holds at most ", format_bytes(bytes_limit),
                         " each; the smallest limit that has one is ", format_bytes(least_limit(parts, stages))));
  return sizes;
}

}  // namespace spillway::pipe
