#include "tools/spillway/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "core/ledger.h"
#include "runtime/training/training_run.h"

namespace spillway::tools {
using namespace runtime;
namespace {

/// Seconds after which a line is due when there is no terminal.
constexpr double kLineSeconds = 10;

std::string bar(double filled, int width) {
  std::string text;
  for (int i = 0; i < width; ++i) text += i < filled * width ? '#' : '.';
  return text;
}

void row(const char* name, const std::string& value) {
  std::printf("  %-22s %s\n", name, value.c_str());
}

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", s);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

std::string metric_curve(const TrainResult& r) {
  std::string text;
  char value[32];
  for (const MetricPoint& point : r.metric) {
    std::snprintf(value, sizeof value, "%s%.3f", text.empty() ? "" : " -> ", point.value);
    text += value;
  }
  return text;
}

const TrainResult* find(const std::vector<NamedResult>& others, std::string_view name) {
  for (const NamedResult& other : others)
    if (other.name == name) return &other.result;
  return nullptr;
}

void print_memory(const TrainResult& r) {
  const bool limited = r.budget_bytes != kUnlimitedBytes;
  std::string peak = format_bytes(r.peak_bytes);
  if (limited)
    peak += " (" + percent(static_cast<double>(r.peak_bytes) / static_cast<double>(r.budget_bytes)) + " of the budget)";
  row("budget per rank", format_bytes(r.budget_bytes));
  row("counted peak", peak);
  if (r.over_budget_bytes() > 0)
    row("above the budget", str(format_bytes(r.over_budget_bytes()),
                                " at most: the unified engine runs what does not "
                                "fit on page faults, and the driver decides what stays on the GPU"));
  if (r.observed) row("unconstrained peak", format_bytes(r.observed->peak_bytes));
  row("smallest budget", format_bytes(r.floor_bytes));
}

void print_steps(const TrainResult& r, const std::vector<NamedResult>& others) {
  std::string step = seconds(r.median_step_seconds());
  if (const TrainResult* unlimited = find(others, "unlimited"))
    step += str("; ", percent(step_time_ratio(r, *unlimited)), " of unlimited over its ", unlimited->losses.size(),
                " steps");
  row("median step", step);
  if (r.predicted)
    row("predicted", str(seconds(r.predicted->step_seconds), " a step, peak ", format_bytes(r.predicted->peak_bytes),
                         "; the bound is ", seconds(r.predicted->bound_seconds)));
  if (r.loss_scale)
    row("loss scale", str(r.loss_scale->scale, " at the end; ", r.loss_scale->skipped_steps, " steps left out"));
}

void print_copies(const TrainResult& r) {
  row("paged out, in", format_bytes(r.bytes_out) + ", " + format_bytes(r.bytes_in));
  if (r.disk_peak_bytes > 0)
    row("on disk", str("at most ", format_bytes(r.disk_peak_bytes), "; ", format_bytes(r.bytes_to_disk), " written, ",
                       format_bytes(r.bytes_from_disk), " read"));
  row("waited for copies", seconds(r.exposed_copy_seconds) + " of the whole run");
  if (r.replayed_operators) row("made again", str(r.replayed_operators, " tensors, instead of copied"));
}

void print_ranks_and_kfac(const TrainResult& r) {
  if (r.allreduce)
    row("gradient allreduce", str(r.allreduce->levels, " ranks, ", format_bytes(r.allreduce->bytes_per_step), " in ",
                                  seconds(r.allreduce->seconds_per_step), " per step, ",
                                  seconds(r.allreduce->exposed_seconds_per_step), " of them waited for"));
  if (r.kfac)
    row("K-FAC", str(r.kfac->strategy, " f=", r.kfac->grad_worker_frac, ", ", r.kfac->layers, " layers (",
                     r.kfac->separable_layers, " separable, ", r.kfac->block_layers, " in blocks), ",
                     format_bytes(r.kfac->state_bytes), " of state in ", r.kfac->storage));
  if (r.kfac && r.kfac->seconds_by_rank.size() > 1)
    for (const auto& phase : kfac::kKfacPhases) {
      const auto spread = r.kfac->over_ranks(phase);
      row(str("  ", phase.title).c_str(), str(seconds(spread.slowest), " on the slowest rank, ", seconds(spread.mean),
                                              " in the mean, ", seconds(spread.fastest), " on the fastest"));
    }
}

}  // namespace

Progress::Progress(bool prints, bool launched, const Ledger& ledger)
    : prints_(prints), terminal_(!launched && ::isatty(STDOUT_FILENO) == 1), ledger_(ledger) {}

void Progress::end_line() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
}

void Progress::heading(const std::string& text) {
  if (!prints_) return;
  end_line();
  std::printf("-- %s\n", text.c_str());
  std::fflush(stdout);
}

void Progress::on_start() {
  if (auto check = std::exchange(check_, nullptr)) check();
}

void Progress::on_decision(const std::string& text) {
  heading(text);
}

void Progress::on_step(int64_t step, int64_t steps, const StepOutcome& outcome, int64_t resident_bytes) {
  if (!prints_) return;
  since_line_seconds_ += outcome.seconds;
  ++since_line_steps_;
  const bool due = step % 10 == 0 || step == steps || step == 1 || since_line_seconds_ >= kLineSeconds;
  if (!terminal_ && !due) return;
  const bool limited = ledger_.budget_bytes() != kUnlimitedBytes;
  const std::string memory =
      limited ? str("[", bar(static_cast<double>(resident_bytes) / static_cast<double>(ledger_.budget_bytes()), 20),
                    "] ", format_bytes(resident_bytes), " of ", format_bytes(ledger_.budget_bytes()))
              : format_bytes(resident_bytes);
  const std::string bound =
      outcome.bound_seconds > 0 ? " (" + percent(outcome.bound_seconds / outcome.seconds) + " of the bound)" : "";
  std::printf("%sstep %lld/%lld  loss %.5f  %.0f ms/step%s  %s%s", terminal_ ? "\r\033[K" : "",
              static_cast<long long>(step), static_cast<long long>(steps), outcome.loss,
              1e3 * since_line_seconds_ / static_cast<double>(since_line_steps_), bound.c_str(), memory.c_str(),
              terminal_ ? "" : "\n");
  std::fflush(stdout);
  line_open_ = terminal_;
  since_line_seconds_ = 0;
  since_line_steps_ = 0;
}

void Progress::on_metric(const MetricPoint& point) {
  if (!prints_) return;
  end_line();
  std::printf("step %lld  on held-out cases: %.4f\n", static_cast<long long>(point.step), point.value);
  std::fflush(stdout);
}

void print_summary(const TrainResult& r, const std::vector<NamedResult>& others) {
  std::printf("\n%s, %lld parameters, %d rank(s), %zu steps\n", r.options.model.name.c_str(),
              static_cast<long long>(r.parameters), r.world_size, r.losses.size());
  print_memory(r);
  print_steps(r, others);
  print_copies(r);
  print_ranks_and_kfac(r);
  row(r.metric_name.c_str(), metric_curve(r));
  for (const NamedResult& other : others)
    if (other.name != "unlimited") row(str(r.metric_name, ", ", other.name).c_str(), metric_curve(other.result));
  row("weights sha256", r.weights_sha256);
  if (const auto& compared = r.replicas_compared_after; !compared.empty())
    row("replicas", str("the same weights on all ", r.world_size, " ranks, compared ", compared.size(),
                        compared.size() == 1 ? " time" : " times", ", last after step ", compared.back()));
}

}  // namespace spillway::tools
