#include "runtime/pipeline/refresh_in_waits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/communicator.h"
#include "runtime/pipeline/exchange.h"

namespace spillway::runtime {
namespace {

using kfac::RefreshWork;
using nlohmann::json;
using What = RefreshWork::What;

/// A piece of work must take some time.
constexpr double kLeastSeconds = 1e-9;

/// Returns the time from a message's start until it has come, by the links' rates; 0 where they are not known.
double message_seconds(const Pipeline& pipeline, const ddl::Comm& world) {
  const auto& costs = world->allreduce->costs();
  if (!costs || costs->levels.empty()) return 0;
  int64_t most = 0;
  for (const auto& values : pipeline.plan.values_of_edge) {
    int64_t bytes = 0;
    for (int value : values) bytes += pipeline.plan.values[value].bytes();
    most = std::max(most, bytes);
  }
  const ddl::LinkCost& link = costs->levels.back();
  return link.latency_seconds + static_cast<double>(most) / link.bytes_per_second;
}

/// Returns the kinds of the pieces that a rank has told of.
std::vector<What> kinds_of(const json& rank) {
  std::vector<What> kinds;
  for (const json& piece : rank[4]) kinds.push_back(piece[3].get<What>());
  return kinds;
}

/// Takes what a rank has told of its stages and its update.
void add_costs(const json& rank, pipe::Costs& costs) {
  costs.update = std::min(costs.update, rank[2].get<double>());  // others wait for the busiest rank in it
  for (const auto& [stage, times] : rank[3].items()) {
    pipe::StageSeconds& known = costs.stages[std::stoi(stage)];
    known.forward = std::max(known.forward, times[0].get<double>());
    known.input_gradient = known.weight_gradient = std::max(known.backward(), times[1].get<double>()) / 2;
  }
}

}  // namespace

RefreshInWaits::RefreshInWaits(kfac::Kfac& kfac, std::shared_ptr<const Pipeline> pipeline, ddl::Comm world)
    : kfac_(kfac),
      pipeline_(std::move(pipeline)),
      world_(std::move(world)),
      cycle_(kfac.cycle_length()),
      micro_batches_(pipeline_->plan.program.micro_batches()) {
  kfac_.defer(true);
  own_ = pieces();
}

std::vector<RefreshInWaits::Piece> RefreshInWaits::pieces() const {
  std::vector<Piece> all;
  for (int64_t step = 0; step < cycle_; ++step) {
    const size_t count = kfac_.refresh_work(cycle_ + step, micro_batches_).size();
    for (size_t index = 0; index < count; ++index) all.push_back({step, index});
  }
  return all;
}

int RefreshInWaits::stage_of(const RefreshWork& work) const {
  const std::vector<int> own = pipeline_->plan.stages_at(pipeline_->place);
  return work.layers.empty() ? own.front()
                             : pipeline_->plan.stage_of_module(kfac_.layers()[work.layers.front()].shape.name);
}

std::string RefreshInWaits::describe_own(const CycleSeconds& seconds) const {
  json stages = json::object(), work = json::array();
  for (int stage : pipeline_->plan.stages_at(pipeline_->place))
    stages[std::to_string(stage)] = {seconds.stages[stage].forward, seconds.stages[stage].backward()};
  bool is_timed = true;
  double refresh = 0;
  for (int64_t step = 0; step < cycle_; ++step) {
    const auto all = kfac_.refresh_work(cycle_ + step, micro_batches_);
    const auto times = kfac_.refresh_seconds(cycle_ + step);
    if (times.size() != all.size()) {
      is_timed = false;
      break;
    }
    for (size_t k = 0; k < all.size(); ++k) {
      refresh += times[k];
      work.push_back({step, stage_of(all[k]), all[k].micro_batch, all[k].what, times[k],
                      kfac::needs_of(all, k, ddl::size_of(pipeline_->of_place))});
    }
  }
  const double update = std::max(0.0, seconds.update - refresh / static_cast<double>(cycle_));
  return json{pipeline_->place, is_timed, update, stages, work}.dump();
}

void RefreshInWaits::plan(const CycleSeconds& seconds) {
  constexpr int kTimedCycles = 2;
  std::vector<json> ranks;
  for (const std::string& text : gather_texts(*world_->communicator, describe_own(seconds)))
    ranks.push_back(json::parse(text));
  const bool is_timed = std::all_of(ranks.begin(), ranks.end(), [](const json& rank) { return rank[1].get<bool>(); });
  if (!is_timed || ++timed_cycles_ < kTimedCycles) return;
  pipe::Costs costs{.stages = std::vector<pipe::StageSeconds>(pipeline_->plan.stages()),
                    .update = std::numeric_limits<double>::infinity(),
                    .message = message_seconds(*pipeline_, world_)};
  std::vector<std::vector<pipe::Extra>> of_place(pipeline_->places);
  std::vector<std::vector<What>> kinds_of_place(pipeline_->places);
  for (const json& rank : ranks) {
    add_costs(rank, costs);
    auto extras = extras_of(rank);
    auto& known = of_place[rank[0].get<int>()];
    // Copies have the same pieces; the slowest one counts.
    for (size_t k = 0; k < known.size(); ++k) extras[k].seconds = std::max(extras[k].seconds, known[k].seconds);
    known = std::move(extras);
    kinds_of_place[rank[0].get<int>()] = kinds_of(rank);
  }
  extras_.clear();
  kinds_.clear();
  for (int place = 0; place < pipeline_->places; ++place) {
    const int first = static_cast<int>(extras_.size());
    if (place == pipeline_->place) first_own_ = first;
    for (pipe::Extra extra : of_place[place]) {
      for (int& after : extra.after) after += first;
      extras_.push_back(std::move(extra));
    }
    kinds_.insert(kinds_.end(), kinds_of_place[place].begin(), kinds_of_place[place].end());
  }
  filled_ = pipe::fill(pipeline_->plan.program, extras_, costs, {.steps = static_cast<int>(cycle_)});
}

std::vector<pipe::Extra> RefreshInWaits::extras_of(const json& rank) const {
  std::vector<pipe::Extra> extras;
  size_t first_of_step = 0;
  for (const json& piece : rank[4]) {
    const int step = piece[0];
    if (extras.empty() || extras.back().taken_step != step) first_of_step = extras.size();
    const int micro_batch =
        piece[3].get<What>() == What::statistics ? piece[2].get<int>() : static_cast<int>(micro_batches_) - 1;
    pipe::Extra& extra = extras.emplace_back();
    extra.rank = rank[0];
    extra.seconds = std::max(piece[4].get<double>(), kLeastSeconds);
    extra.ready = {pipeline_->plan.program.backward_work(), piece[1], micro_batch};
    extra.taken_step = step;
    extra.serves_step = static_cast<int>(step + kfac_.options().curvature_delay);
    for (const json& need : piece[5]) extra.after.push_back(static_cast<int>(first_of_step + need.get<size_t>()));
  }
  return extras;
}

std::string describe(const RefreshInWaits& in_waits) {
  const pipe::Filled& filled = in_waits.filled();
  const auto milliseconds = [&](double seconds) {
    return static_cast<int64_t>(std::round(1000 * seconds / filled.steps()));
  };
  return str("from here on K-FAC's work is done while ranks wait: ", in_waits.extras().size(), " pieces in ",
             filled.steps(), " steps, ", milliseconds(*std::max_element(filled.filled.begin(), filled.filled.end())),
             " ms a step on the busiest rank, make a step of ", milliseconds(filled.unfilled_seconds), " ms take ",
             milliseconds(filled.seconds), " ms");
}

const std::vector<pipe::FilledItem>* RefreshInWaits::items_of(int64_t step) const {
  return filled_.items.empty() ? nullptr : &filled_.items[pipeline_->place][step % cycle_];
}

void RefreshInWaits::run(const pipe::FilledItem& extra, int64_t step) {
  const Piece& piece = own_.at(extra.extra - first_own_);
  const int64_t taken = (step / cycle_ - extra.age) * cycle_ + piece.taken_step;
  const Stopwatch stopwatch(seconds_[static_cast<size_t>(kind_of(extra.extra))]);
  if (kfac_.waits(taken, piece.index)) kfac_.run(taken, micro_batches_, piece.index);
}

}  // namespace spillway::runtime
