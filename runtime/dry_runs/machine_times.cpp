#include "runtime/dry_runs/machine_times.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/host/processor.h"
#include "core/json_text.h"
#include "core/new_file.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

/// Returns all that decides the times, as far as this process can tell. The format's number changes with the keys.
json description() {
  return {
      {"processor", processor_model()}, {"threads", at::get_num_threads()}, {"torch", TORCH_VERSION}, {"format", 3}};
}

std::filesystem::path file_in(const std::filesystem::path& folder) {
  if (folder.empty()) return {};
  uint64_t hash = kHashSeed;
  for (const char letter : json_text(description())) hash = hash_in(hash, letter);
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash));
  return folder / name.data();
}

bool is_time(const json& value) {
  return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
}

}  // namespace

MachineTimes::MachineTimes(const std::filesystem::path& folder) : file_(file_in(folder)) {
  if (!file_.empty()) read();
}

void MachineTimes::read() {
  std::ifstream in(file_, std::ios::binary);
  if (!in) return;
  try {
    const json all = parse_json(std::string(std::istreambuf_iterator<char>(in), {}));
    if (!all.is_object() || all.value("of", json()) != description()) return;
    std::map<std::string, double> known;
    const json seconds_of_calls = all.value("seconds", json::object());
    for (const auto& [call, seconds] : seconds_of_calls.items())
      if (is_time(seconds)) known[call] = seconds;
    kernels_->add(known);
    if (const json gaps = all.value("gap_seconds", json()); gaps.is_object())
      if (const json forward = gaps.value("forward", json()), backward = gaps.value("backward", json());
          is_time(forward) && is_time(backward))
        set_gaps({forward, backward});
    if (const json rate = all.value("copy_bytes_per_second", json()); is_time(rate)) copy_rate_ = rate;
  } catch (const BadRequest&) {
    return;  // a file that is none of ours is measured anew and overwritten
  }
}

void MachineTimes::write() const {
  try {
    std::filesystem::create_directories(file_.parent_path());
    NewFile fresh(file_);
    json all{{"of", description()}, {"copy_bytes_per_second", copy_rate_}, {"seconds", kernels_->known()}};
    if (knows_gaps_)
      all["gap_seconds"] = {{"forward", kernels_->gaps().forward}, {"backward", kernels_->gaps().backward}};
    fresh.write(json_text(all, 1));
    fresh.commit();
  } catch (const std::system_error&) {
    return;
  }
}

void MachineTimes::set_gaps(const swap::HostGaps& gaps) {
  kernels_->set_gaps(gaps);
  knows_gaps_ = true;
}

int64_t MachineTimes::measure_missing() {
  const int64_t missing = kernels_->missing();
  if (missing == 0) return 0;
  kernels_->measure();
  if (!knows_gaps_) set_gaps(measure_host_gaps());
  if (!file_.empty()) write();
  return missing;
}

double MachineTimes::copy_rate() {
  if (copy_rate_ > 0) return copy_rate_;
  copy_rate_ = swap::measure_copy_rate();
  if (!file_.empty()) write();
  return copy_rate_;
}

}  // namespace spillway::runtime
