#include "runtime/pictures/memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "runtime/pictures/text.h"

namespace spillway::report {
namespace {

/// The categories from the bottom up. Categories that stay through the step come first, so that changing ones are drawn
/// on a steady base.
constexpr std::array kStack{Category::weights,    Category::optimizer, Category::factors,
                            Category::eigenbases, Category::gradients, Category::activations,
                            Category::workspace,  Category::staging,   Category::other};
static_assert(kStack.size() == kCategoryCount);

/// The ratio of a line to everything else above which it is not drawn, because it would leave the rest flat.
constexpr double kTooHigh = 4;

int64_t total(const BytesByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}
int64_t held(const BytesByCategory& bytes, Category category) {
  return bytes[category];
}

bool ever_held(const StepRecording& recording, Category category) {
  return std::any_of(recording.memory.begin(), recording.memory.end(),
                     [&](const MemorySample& sample) { return held(sample.bytes, category) > 0; });
}

/// Returns two samples of each column of the picture: the highest, and the last, which holds until the next column.
std::vector<const MemorySample*> thin_out(const std::vector<MemorySample>& samples, const Axis& time) {
  std::vector<const MemorySample*> kept;
  for (size_t begin = 0; begin < samples.size();) {
    const double column = std::floor(time.at(samples[begin].seconds));
    const MemorySample* highest = &samples[begin];
    size_t end = begin;
    for (; end < samples.size() && std::floor(time.at(samples[end].seconds)) == column; ++end)
      if (total(samples[end].bytes) > total(highest->bytes)) highest = &samples[end];
    kept.push_back(highest);
    if (highest != &samples[end - 1]) kept.push_back(&samples[end - 1]);
    begin = end;
  }
  return kept;
}

/// Returns the outline of the area from the bottom to the top of layer `layer` of the stack. Layers are drawn from the
/// top down, so each covers the lower part of the one before.
std::string area_path(const std::vector<const MemorySample*>& samples, size_t layer, const Grid& grid, const Axis& time,
                      const Axis& bytes) {
  std::string path = str("M", decimal(time.at(samples.front()->seconds)), " ", decimal(grid.bottom));
  std::string height;
  for (const MemorySample* sample : samples) {
    int64_t sum = 0;
    for (size_t i = 0; i <= layer; ++i) sum += held(sample->bytes, kStack[i]);
    std::string next = decimal(bytes.at(static_cast<double>(sum)));
    if (next == height) continue;
    height = std::move(next);
    path += str("H", decimal(time.at(sample->seconds)), "V", height);
  }
  return path + str("H", decimal(grid.right), "V", decimal(grid.bottom), "Z");
}

/// A level that the memory is compared with.
struct Level {
  std::string label;
  std::string css;
  double bytes;
};

std::vector<Level> named(const MemoryLevels& given) {
  std::vector<Level> levels;
  auto add = [&](std::string_view what, std::string css, int64_t bytes) {
    levels.push_back({str(what, " ", format_bytes(bytes)), std::move(css), static_cast<double>(bytes)});
  };
  if (given.budget_bytes != kUnlimitedBytes) add("budget", "budget", given.budget_bytes);
  if (given.unconstrained_bytes > 0) add("unconstrained", "unconstrained", given.unconstrained_bytes);
  return levels;
}

/// Returns the height of the picture in bytes. It covers all samples, and the levels that are not too high.
double picture_bytes(const StepRecording& recording, const std::vector<Level>& levels) {
  const MemorySample* highest = highest_sample(recording);
  double most = highest ? static_cast<double>(total(highest->bytes)) : 0;
  for (const Level& level : levels)
    if (most == 0 || level.bytes <= kTooHigh * most) most = std::max(most, level.bytes);
  return 1.06 * std::max(most, 1.);
}

std::string draw_levels(const std::vector<Level>& levels, const Grid& grid, const Axis& bytes) {
  std::string out;
  std::vector<double> heights;
  for (const Level& level : levels) {
    const double y = bytes.at(level.bytes);
    heights.push_back(y + 4);
    if (level.bytes <= bytes.high) out += draw_line(grid.left, y, grid.right, y, level.css);
  }
  heights = spread(heights, 15, grid.top + 4, grid.bottom);
  for (size_t i = 0; i < levels.size(); ++i)
    out += draw_text(grid.right + 10, heights[i], levels[i].css + "-label",
                     levels[i].label + (levels[i].bytes > bytes.high ? " ↑" : ""));
  return out;
}

}  // namespace

const MemorySample* highest_sample(const StepRecording& recording) {
  auto highest = std::max_element(recording.memory.begin(), recording.memory.end(),
                                  [](const auto& a, const auto& b) { return total(a.bytes) < total(b.bytes); });
  return highest == recording.memory.end() ? nullptr : &*highest;
}

std::string draw_memory(const StepRecording& recording, const MemoryLevels& given, const Grid& grid, const Axis& time) {
  const auto levels = named(given);
  const Axis bytes{0, picture_bytes(recording, levels), grid.bottom, grid.top};
  std::string out = draw_rows(grid, bytes, byte_ticks(bytes.high));
  const auto samples = thin_out(recording.memory, time);
  const MemorySample* highest = highest_sample(recording);
  for (size_t layer = kStack.size(); layer-- > 0 && highest;) {
    const Category category = kStack[layer];
    if (!ever_held(recording, category)) continue;
    out += str("<path class=\"c-", name(category), "\" d=\"", area_path(samples, layer, grid, time, bytes),
               "\"><title>", name(category), ", ", format_bytes(held(highest->bytes, category)),
               " at the highest sample</title></path>\n");
  }
  return out + draw_levels(levels, grid, bytes);
}

std::string draw_memory_legend(const StepRecording& recording) {
  const MemorySample* highest = highest_sample(recording);
  if (!highest) return "";
  std::string out = "<ul class=\"legend\">\n";
  for (Category category : kStack)
    if (ever_held(recording, category))
      out += str("<li><i class=\"c-", name(category), "\"></i>", name(category), " <b>",
                 format_bytes(held(highest->bytes, category)), "</b></li>\n");
  return out + "</ul>\n";
}

}  // namespace spillway::report
