#include "benchmarks/reproduce/block_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>

#include "benchmarks/reproduce/published_tables.h"
#include "benchmarks/reproduce/split_lines.h"
#include "core/error.h"
#include "core/host/text_file.h"
#include "core/parse_number.h"

namespace spillway::runtime {
namespace {

constexpr std::array<std::string_view, 6> kColumns{"bs", "time_f", "time_b", "time_kron", "time_inv", "time_prec"};
/// The rows that are read at most, so that another kind of file ends soon.
constexpr size_t kMaxRows = 10'000;

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw BadRequest(str("cannot read block times from '", file, "': ", why));
}

std::string text_of(const std::string& file) {
  try {
    return read_text_file(file);
  } catch (const BadRequest& error) {
    refuse(file, error.what());
  }
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields = split(line, ',');
  for (std::string_view& field : fields) {
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
  }
  return fields;
}

/// Returns the places of kColumns in the first line.
std::array<size_t, kColumns.size()> places_of(const std::string& file, const std::vector<std::string_view>& header) {
  std::array<size_t, kColumns.size()> places{};
  for (size_t c = 0; c < kColumns.size(); ++c) {
    const auto found = std::find(header.begin(), header.end(), kColumns[c]);
    if (found == header.end())
      refuse(file, str("its first line names no column '", kColumns[c],
                       "'; it must name bs, time_f, time_b, time_kron, time_inv and time_prec"));
    places[c] = found - header.begin();
  }
  return places;
}

double number_of(const std::string& file, size_t line, std::string_view column, std::string_view field) {
  const std::optional<double> parsed = parse_number<double>(field);
  const double number = parsed.value_or(0);
  const bool is_size = column == kColumns[0];
  const bool is_time = column == "time_f" || column == "time_b";  // without these no rank works
  const bool in_range = is_size
                            ? number >= 1 && number <= std::numeric_limits<int>::max() && number == std::floor(number)
                            : std::isfinite(number) && (is_time ? number > 0 : number >= 0);
  if (!parsed || !in_range)
    refuse(file, str("line ", line, " has ", column, " '", field, "'; allowed: ",
                     is_size   ? "1, 2, 3 and so on"
                     : is_time ? "milliseconds above 0"
                               : "milliseconds, 0 or more"));
  return number;
}

BlockTimes times_of(const std::array<double, kColumns.size()>& row) {
  return {row[1], row[2], row[3], row[4], row[5]};
}

}  // namespace

const BlockTimes& BlockProfile::at(int batch_size) const {
  const auto found = by_batch_size.find(batch_size);
  if (found != by_batch_size.end()) return found->second;
  std::string known;
  for (const auto& [size, times] : by_batch_size) known += str(known.empty() ? "" : ", ", size);
  throw BadRequest(str("there are no times of ", block, " on ", device, " for micro-batches of ", batch_size,
                       "; there are for ", known));
}

BlockProfile read_block_profile(const std::string& file) {
  std::istringstream in(text_of(file));
  std::string text;
  if (!std::getline(in, text)) refuse(file, "it is empty");
  const size_t columns = fields_of(text).size();
  const auto places = places_of(file, fields_of(text));
  BlockProfile profile{.block = "a block", .device = file};
  for (size_t line = 2; std::getline(in, text); ++line) {
    const std::vector<std::string_view> fields = fields_of(text);
    if (fields == std::vector<std::string_view>{""}) continue;
    if (fields.size() != columns) refuse(file, str("line ", line, " has ", fields.size(), " fields of ", columns));
    if (profile.by_batch_size.size() == kMaxRows) refuse(file, str("it has more than ", kMaxRows, " rows"));
    std::array<double, kColumns.size()> row{};
    for (size_t c = 0; c < row.size(); ++c) row[c] = number_of(file, line, kColumns[c], fields[places[c]]);
    if (!profile.by_batch_size.emplace(static_cast<int>(row[0]), times_of(row)).second)
      refuse(file, str("line ", line, " has micro-batches of ", row[0], " again"));
  }
  if (profile.by_batch_size.empty()) refuse(file, "it has no row of times");
  return profile;
}

std::vector<BlockProfile> published_profiles() {
  std::vector<BlockProfile> profiles;
  for (const std::vector<std::string_view>& fields : split_lines(kBlockTimesTsv, '\t')) {
    if (fields.size() < 8 || fields[0] == "block") continue;
    if (profiles.empty() || profiles.back().block != fields[0] || profiles.back().device != fields[1])
      profiles.push_back({.block = std::string(fields[0]), .device = std::string(fields[1])});
    std::array<double, kColumns.size()> row{};
    for (size_t c = 0; c < row.size(); ++c) row[c] = number_of("block_times.tsv", 0, kColumns[c], fields[2 + c]);
    profiles.back().by_batch_size[static_cast<int>(row[0])] = times_of(row);
  }
  return profiles;
}

std::vector<BlockProfile> BlockTimesSource::profiles(std::string_view block) const {
  if (own_) return {*own_};
  std::vector<BlockProfile> all = published_profiles();
  std::erase_if(all, [&](const BlockProfile& profile) { return !block.empty() && profile.block != block; });
  if (all.empty()) throw BadRequest(str("there are no times of a block called '", block, "'"));
  return all;
}

BlockTimes BlockTimesSource::on_p100(std::string_view block, int batch_size) const {
  for (const BlockProfile& profile : profiles(block))
    if (own_ || profile.device == "P100") return profile.at(batch_size);
  throw BadRequest(str("there are no times of ", block, " on one P100"));
}

std::string BlockTimesSource::describe() const {
  if (own_) return str("blocks take what ", own_->device, " says, and the published figures are of other blocks");
  return "blocks take what the authors measured on one GPU and publish with their program";
}

}  // namespace spillway::runtime
