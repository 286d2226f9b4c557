// spillway bench pipeline: schedules of pipelines, and work in their waits, on items that sleep. Ranks are threads, and
// their messages are real.
#include "benchmarks/pipeline/command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "benchmarks/pipeline/report.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "tools/cli/numbers.h"
#include "tools/cli/write_json.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

constexpr const char* kAuto = "auto";
constexpr const char* kRolling = "rolling";
constexpr const char* kTogether = "together";
constexpr int kMaxInterval = 1000;

struct Options {
  PipelineShape shape;
  std::optional<int> micro_batches, chunks, blocks, staleness;
  std::vector<std::string> schedules{kSchedules.begin(), kSchedules.end()};
  std::vector<std::string> refreshes{kRolling}, intervals{kAuto}, sizes{"200KB", "2MB", "12MB"};
  std::string emulate, message = "64KiB", link = "none", json_file;
  std::optional<double> scale;
  RefreshOptions refresh;
  MeasureOptions measure;
};

/// A refresh that was asked for.
struct Asked {
  std::string refresh, interval;
  RefreshOptions options;
};

/// Everything that the flags mean.
struct Request {
  BlockList model;
  double scale = 1;
  std::vector<EmulatedPipeline> pipelines;
  std::vector<Asked> refreshes;
  std::vector<int64_t> sizes;
};

bool has(const std::vector<std::string>& all, const char* name) {
  return std::find(all.begin(), all.end(), name) != all.end();
}

void refuse_flags_without_effect(const Options& options) {
  if (options.blocks && !options.emulate.empty())
    throw BadRequest("--blocks is the number of BERT-Base's blocks; --emulate has blocks of its own");
  if (options.chunks && !has(options.schedules, "interleaved"))
    throw BadRequest("--chunks is for --schedules interleaved");
  if (options.staleness && !has(options.refreshes, kRolling)) throw BadRequest("--staleness is for --refresh rolling");
}

std::optional<int> interval_of(const std::string& text) {
  if (text == kAuto) return std::nullopt;
  const std::optional<int> value = parse_number<int>(text);
  if (!value || *value < 1 || *value > kMaxInterval)
    throw BadRequest(str("--interval: '", text, "'; allowed: auto, and whole numbers from 1 to ", kMaxInterval));
  return value;
}

std::vector<Asked> refreshes_of(const Options& options) {
  std::vector<Asked> all;
  for (const std::string& refresh : options.refreshes) {
    if (refresh != kRolling && refresh != kTogether)
      throw BadRequest(str("--refresh: '", refresh, "'; allowed: ", kRolling, ", ", kTogether));
    for (const std::string& interval : options.intervals) {
      Asked& asked = all.emplace_back(Asked{refresh, interval, options.refresh});
      asked.options.rolling = refresh == kRolling;
      asked.options.interval = interval_of(interval);
      asked.options.staleness = options.staleness.value_or(asked.options.staleness);
    }
  }
  return all;
}

std::vector<int64_t> sizes_of(const std::vector<std::string>& texts) {
  if (texts == std::vector<std::string>{"none"}) return {};
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) sizes.push_back(parse_bytes(text));
  return sizes;
}

/// Reads the flags, before anything runs. Throws BadRequest.
Request read(Options& options) {
  constexpr int kBlocks = 4;
  constexpr double kScale = 0.1;
  refuse_flags_without_effect(options);
  PipelineShape& shape = options.shape;
  shape.micro_batches = options.micro_batches.value_or(shape.ranks);
  shape.chunks = options.chunks.value_or(shape.chunks);
  options.measure.messages.bytes = parse_bytes(options.message);
  if (options.link != "none") {
    options.measure.messages.link_bytes_per_second = static_cast<double>(parse_bytes(options.link));
    if (options.measure.messages.link_bytes_per_second < 1)
      throw BadRequest(str("--link: '", options.link, "'; allowed: none, and 1 byte a second or more"));
  }
  const bool is_own = options.emulate.empty();
  Request request{
      .model = is_own ? bert_base(options.blocks.value_or(kBlocks) * shape.ranks) : read_blocks(options.emulate),
      .scale = options.scale.value_or(is_own ? kScale : 1),
      .pipelines = {},
      .refreshes = refreshes_of(options),
      .sizes = sizes_of(options.sizes)};
  if (!std::isfinite(request.scale) || request.scale <= 0)
    throw BadRequest(str("--scale is ", request.scale, "; allowed: finite numbers above 0"));
  for (const std::string& schedule : options.schedules)
    request.pipelines.push_back(emulate(schedule, shape, request.model, request.scale));
  return request;
}

/// Measures and prints rows, and keeps the figures of the first schedule of each kind.
class Rows {
 public:
  void add(const std::string& schedule, const std::string& refresh, const std::string& interval, MeasuredRefresh of) {
    const Figures& first = first_.try_emplace({refresh, interval}, of.figures).first->second;
    const ReportRow row{schedule, refresh, interval, std::move(of), first};
    print(row);
    json_.push_back(to_json(row));
  }
  json take() { return std::move(json_); }

 private:
  std::map<std::pair<std::string, std::string>, Figures> first_;  // by refresh and interval
  json json_ = json::array();
};

json measure_schedules(const Options& options, const Request& request, double message) {
  Rows rows;
  print_heading();
  for (EmulatedPipeline pipeline : request.pipelines) {
    pipeline.costs.message = message;
    const Figures alone = measure_alone(pipeline, options.measure);
    rows.add(pipeline.schedule, "none", "", {.figures = alone});
    for (const Asked& asked : request.refreshes)
      rows.add(pipeline.schedule, asked.refresh, asked.interval,
               measure_refresh(pipeline, asked.options, alone, options.measure));
  }
  return rows.take();
}

json measure_empty_items(const Options& options, const Request& request) {
  std::vector<std::pair<std::string, EmptyItem>> all;
  json rows = json::array();
  for (const EmulatedPipeline& pipeline : request.pipelines) {
    const EmptyItem item = measure_empty(pipeline, options.measure.messages);
    all.emplace_back(pipeline.schedule, item);
    rows.push_back(
        {{"schedule", pipeline.schedule}, {"seconds", item.seconds}, {"processor_seconds", item.processor_seconds}});
  }
  print_empty_items(all);
  return rows;
}

json measure_messages(const Options& options, const Request& request) {
  const auto all = measure_beside(request.sizes, options.measure.messages.link_bytes_per_second);
  print_beside(all);
  json rows = json::array();
  for (const BesideItems& row : all) rows.push_back(to_json(row));
  return rows;
}

int bench_pipeline(Options& options) {
  const Request request = read(options);
  const Messages& messages = options.measure.messages;
  const double message = message_seconds(messages, kMessageRepeats);
  std::printf("%d ranks, %d micro-batches, %zu blocks (%s) at %g of their times; a message of %s takes %.0f µs\n",
              options.shape.ranks, options.shape.micro_batches, request.model.blocks.size(), request.model.name.c_str(),
              request.scale, format_bytes(messages.bytes).c_str(), 1e6 * message);
  const double link = messages.link_bytes_per_second;
  json result{{"ranks", options.shape.ranks},
              {"micro_batches", options.shape.micro_batches},
              {"chunks", options.shape.chunks},
              {"model", request.model.name},
              {"blocks", request.model.blocks.size()},
              {"scale", request.scale},
              {"message_bytes", messages.bytes},
              {"message_seconds", message},
              {"link_bytes_per_second", link > 0 ? json(link) : json(nullptr)}};
  result["rows"] = measure_schedules(options, request, message);
  result["empty_items"] = measure_empty_items(options, request);
  result["beside_items"] = measure_messages(options, request);
  if (!options.json_file.empty()) write_json(result, options.json_file);
  return kOk;
}

template <class Value>
CLI::Option* add_count(CLI::App& command, const char* flag, Value& value, const char* meaning, int64_t least,
                       const char* by_default) {
  return add_number(command, flag, value, meaning)->type_name("N")->check(at_least(least))->default_str(by_default);
}

template <class Value>
CLI::Option* add_names(CLI::App& command, const char* flag, Value& value, const char* meaning, const char* type,
                       const char* by_default) {
  return command.add_option(flag, value, meaning)->type_name(type)->delimiter(',')->default_str(by_default);
}

void add_pipeline_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Pipeline");
  add_count(command, "--ranks", options.shape.ranks, "Number of ranks, which are threads", 2, "4");
  add_count(command, "--accumulate", options.micro_batches, "Micro-batches per step", 1, "--ranks");
  add_names(command, "--schedules", options.schedules,
            "Schedules: gpipe, 1f1b, interleaved, zb-h1 or chimera, several with commas", "NAMES", "all");
  add_count(command, "--chunks", options.chunks, "Stages per rank with interleaved", 1, "2");
  command.add_option("--message", options.message, "Size of each message between stages")
      ->type_name("SIZE")
      ->capture_default_str();
  command.add_option("--link", options.link, "Bandwidth out of a rank in bytes per second, or none: as fast as memory")
      ->type_name("SIZE")
      ->capture_default_str();
  command.option_defaults()->group("Emulated times");
  command.add_option("--emulate", options.emulate, "CSV file with the times of the blocks to emulate")
      ->type_name("FILE")
      ->default_str("BERT-Base on one P100");
  add_count(command, "--blocks", options.blocks, "Blocks of BERT-Base per rank", 1, "4");
  add_number(command, "--scale", options.scale, "Multiply all block times by X; above 0")
      ->type_name("X")
      ->default_str("0.1, with --emulate 1");
}

void add_refresh_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Work in the bubbles");
  add_names(command, "--refresh", options.refreshes,
            "K-FAC refreshes: rolling (layers in turn), together (all layers from one step), or both", "NAMES",
            kRolling);
  add_names(command, "--interval", options.intervals,
            "Refresh each layer every STEPS steps; several with commas, or auto", "STEPS", kAuto);
  add_count(command, "--staleness", options.staleness, "With rolling: steps from a layer's statistics to their use", 0,
            "2");
  add_count(command, "--pieces", options.refresh.pieces, "Pieces of an inversion; other work may run between them", 1,
            "1");
  command.option_defaults()->group("Measurement");
  add_count(command, "--steps", options.measure.steps, "Minimum number of measured steps per run", 1, "24");
  add_names(command, "--sizes", options.sizes, "Sizes of messages to measure beside items of 20 ms, or none", "SIZES",
            "200KB,2MB,12MB");
  command.add_option("--json", options.json_file, "File for the results")->type_name("FILE")->default_str("none");
}

}  // namespace

Run add_bench_pipeline(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("pipeline", "Measures pipeline schedules, and work in their bubbles, on items that sleep");
  add_pipeline_flags(*command, *options);
  add_refresh_flags(*command, *options);
  command->footer(
      "Example: spillway bench pipeline --ranks 4 --schedules 1f1b,zb-h1 --interval 2,3,6,12 --json p.json");
  return [options] { return bench_pipeline(*options); };
}

}  // namespace spillway::tools
