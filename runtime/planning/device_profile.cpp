#include "runtime/planning/device_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json_text.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

/// Shares of a data sheet's peaks that kernels reach.
constexpr double kProducts = 0.6;
constexpr double kMemory = 0.8;

/// A data sheet's numbers.
struct DataSheet {
  const char* name;
  double memory_bytes;
  double float32_flops;      ///< outside tensor cores
  double convolution_flops;  ///< with TF32 where there is, as LibTorch's default is
  double half_flops;         ///< dense, on tensor cores
  double bytes_per_second;   ///< device memory
  double copy_rate;          ///< one way over PCIe, of the host's pinned memory
  double host_rate;          ///< memory of the host
  double local_rate;         ///< between GPUs of a host, one way
  double network_rate;       ///< one GPU's share of its host's network
  double eigh_scale;         ///< time of decompositions as a multiple of the H100's
};
constexpr DataSheet kSheets[]{
    {"h200", 141e9, 67e12, 494e12, 989e12, 4.8e12, 55e9, 614e9, 450e9, 50e9, 1},
    {"h100", 80e9, 67e12, 494e12, 989e12, 3.35e12, 55e9, 614e9, 450e9, 50e9, 1},
    {"a100", 80e9, 19.5e12, 156e12, 312e12, 2.04e12, 25e9, 410e9, 300e9, 25e9, 1.4},
    {"v100", 16e9, 15.7e12, 15.7e12, 125e12, 0.9e12, 12e9, 154e9, 150e9, 12.5e9, 1.9},
};

/// Numbers that an H100 in a virtual machine has shown: seconds of cuSOLVER's float32 decompositions, those of sides up
/// to 256 in batches, device memory of libraries, and seconds of the host for an operator.
const std::vector<std::pair<int64_t, double>> kEigh{
    {64, 8e-6}, {256, 1.8e-4}, {512, 5e-3}, {1152, 1.33e-2}, {2304, 3.26e-2}};
constexpr int64_t kLibraryBytes = int64_t{242} << 20;
constexpr double kHostSeconds = 25e-6, kHostSecondsOfLibraries = 110e-6;
/// Steps of three U-Nets on it show that its convolutions of few channels are slow, and this fits them.
constexpr double kTensorCoreChannels = 180;

DeviceProfile profile_of(const DataSheet& sheet) {
  DeviceProfile profile{.name = sheet.name,
                        .origin = "data sheet, and an H100 as it was measured",
                        .memory_bytes = static_cast<int64_t>(sheet.memory_bytes),
                        .library_bytes = kLibraryBytes};
  const bool has_tensor_cores_for_float32 = sheet.convolution_flops > sheet.float32_flops;
  profile.kernels = {.matrix_flops = kProducts * sheet.float32_flops,
                     .convolution_flops = kProducts * sheet.convolution_flops,
                     .convolution_channels = has_tensor_cores_for_float32 ? kTensorCoreChannels : 0,
                     .half_flops = kProducts * sheet.half_flops,
                     .bytes_per_second = kMemory * sheet.bytes_per_second,
                     .operator_seconds = 5e-6,
                     .gap_seconds = kHostSeconds,
                     .library_gap_seconds = kHostSecondsOfLibraries,
                     .eigh_seconds = kEigh};
  for (auto& [side, seconds] : profile.kernels.eigh_seconds) seconds *= sheet.eigh_scale;
  profile.copies.out_bytes_per_second = profile.copies.in_bytes_per_second = sheet.copy_rate;
  profile.host_bytes_per_second = kMemory * sheet.host_rate;
  profile.copies.to_disk_bytes_per_second = profile.copies.from_disk_bytes_per_second = 3e9;
  profile.network.levels = {
      {.latency_seconds = 10e-6, .message_seconds = 1e-6, .bytes_per_second = sheet.local_rate},
      {.latency_seconds = 20e-6, .message_seconds = 2e-6, .bytes_per_second = sheet.network_rate}};
  profile.network.reduce_seconds_per_byte = 3 / (kMemory * sheet.bytes_per_second);
  return profile;
}

/// Takes the fields of one object, each of which must be there and in its range.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {
    if (!object.is_object()) throw BadRequest("a device profile is a JSON object of named numbers");
  }
  const json& take(const char* name) {
    taken_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) throw BadRequest(str("a device profile needs '", name, "', which this one lacks"));
    return *found;
  }
  double number(const char* name, double least) {
    const json& value = take(name);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < least)
      throw BadRequest(str("'", name, "' of a device profile is ", value.dump(), "; allowed are numbers from ", least));
    return value.get<double>();
  }
  double rate(const char* name) { return number(name, 1); }
  const json& list(const char* name) {
    const json& value = take(name);
    if (!value.is_array() || value.empty())
      throw BadRequest(str("'", name, "' of a device profile is a list with at least one entry"));
    return value;
  }
  void refuse_others() const {
    for (const auto& [name, value] : object_.items())
      if (!taken_.contains(name)) throw BadRequest(str("a device profile has no field '", name, "'"));
  }

 private:
  const json& object_;
  std::set<std::string> taken_;
};

DeviceRates read_kernels(Fields& fields) {
  DeviceRates kernels{.matrix_flops = fields.rate("matrix_flops"),
                      .convolution_flops = fields.rate("convolution_flops"),
                      .convolution_channels = fields.number("convolution_channels", 0),
                      .half_flops = fields.rate("half_flops"),
                      .bytes_per_second = fields.rate("bytes_per_second"),
                      .operator_seconds = fields.number("operator_seconds", 0),
                      .gap_seconds = fields.number("gap_seconds", 0),
                      .library_gap_seconds = fields.number("library_gap_seconds", 0)};
  for (const json& entry : fields.list("eigh")) {
    Fields point(entry);
    const int64_t side = whole_number(point.take("side"), "side", 1, 1 << 20);
    kernels.eigh_seconds.emplace_back(side, point.number("seconds", 1e-9));
    point.refuse_others();
  }
  if (!std::is_sorted(kernels.eigh_seconds.begin(), kernels.eigh_seconds.end(),
                      [](const auto& a, const auto& b) { return a.first <= b.first; }))
    throw BadRequest("'eigh' of a device profile names its sides in ascending order, each once");
  return kernels;
}

ddl::LinkCost read_link(const json& entry) {
  Fields link(entry);
  ddl::LinkCost cost{.latency_seconds = link.number("latency_seconds", 0),
                     .message_seconds = link.number("message_seconds", 0),
                     .bytes_per_second = link.rate("bytes_per_second")};
  link.refuse_others();
  return cost;
}

}  // namespace

std::vector<std::string> built_in_profiles() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : kSheets) names.emplace_back(sheet.name);
  return names;
}

DeviceProfile built_in_profile(std::string_view name) {
  for (const DataSheet& sheet : kSheets)
    if (name == sheet.name) return profile_of(sheet);
  throw BadRequest(str("there is no device profile '", name, "'; there are h200, h100, a100 and v100"));
}

DeviceProfile parse_profile(std::string_view text) {
  const json all = parse_json(text);
  Fields fields(all);
  DeviceProfile profile;
  const json& name = fields.take("name");
  if (!name.is_string()) throw BadRequest("'name' of a device profile is a text");
  profile.name = name.get<std::string>();
  profile.memory_bytes = whole_number(fields.take("memory_bytes"), "memory_bytes", 1);
  profile.library_bytes = whole_number(fields.take("library_bytes"), "library_bytes", 0);
  profile.kernels = read_kernels(fields);
  profile.copies = {.out_bytes_per_second = fields.rate("copy_out_bytes_per_second"),
                    .in_bytes_per_second = fields.rate("copy_in_bytes_per_second"),
                    .compute_slowdown = fields.number("compute_slowdown", 0),
                    .to_disk_bytes_per_second = fields.rate("disk_write_bytes_per_second"),
                    .from_disk_bytes_per_second = fields.rate("disk_read_bytes_per_second")};
  profile.host_bytes_per_second = fields.number("host_bytes_per_second", 0);
  for (const json& link : fields.list("links")) profile.network.levels.push_back(read_link(link));
  profile.network.reduce_seconds_per_byte = fields.number("reduce_seconds_per_byte", 0);
  fields.refuse_others();
  return profile;
}

ClusterShape ClusterShape::parse(std::string_view text, int world) {
  ClusterShape shape{.levels = text.empty() ? ddl::Levels(world) : ddl::Levels::parse(text, world)};
  // A level of one child joins nothing, and Levels leaves it out.
  size_t link = 0;
  for (size_t begin = 0; begin <= text.size(); ++link) {
    const size_t end = std::min(text.find('x', begin), text.size());
    if (text.substr(begin, end - begin) != "1") shape.links.push_back(link);
    begin = end + 1;
  }
  shape.links.resize(shape.levels.count(), link);
  const bool joins_hosts_alone = shape.links.empty() || shape.links.front() > 0;
  if (!joins_hosts_alone)
    for (const ddl::Levels::Group& host : shape.levels.groups(1))
      shape.ranks_of_host = std::max<int>(shape.ranks_of_host, host.ranks.size());
  return shape;
}

swap::LinkRates shared_copies(const DeviceProfile& profile, const ClusterShape& shape) {
  swap::LinkRates rates = profile.copies;
  const double of_host = profile.host_bytes_per_second / shape.ranks_of_host;
  for (double* rate : {&rates.out_bytes_per_second, &rates.in_bytes_per_second}) {
    *rate /= shape.devices_per_link;
    if (of_host > 0) *rate = std::min(*rate, of_host);
  }
  return rates;
}

DeviceProfile in_turns(DeviceProfile profile, double turns) {
  profile.copies.out_bytes_per_second /= turns;
  profile.copies.in_bytes_per_second /= turns;
  if (profile.network_is_measured) return profile;
  profile.network.reduce_seconds_per_byte *= turns;
  for (ddl::LinkCost& link : profile.network.levels) {
    if (!link.by_cores) continue;
    link.latency_seconds *= turns;
    link.message_seconds *= turns;
    link.bytes_per_second /= turns;
  }
  return profile;
}

ddl::Costs costs_of(const DeviceProfile& profile, const ClusterShape& shape) {
  ddl::Costs costs{.reduce_seconds_per_byte = profile.network.reduce_seconds_per_byte};
  for (size_t link : shape.links)
    costs.levels.push_back(profile.network.levels[std::min(link, profile.network.levels.size() - 1)]);
  return costs;
}

}  // namespace spillway::runtime
