/// The clock that a pipeline's items are timed by.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "pipe/costs.h"
#include "pipe/fill.h"

namespace spillway::runtime {

/// A clock of one rank. learn() starts it at 0.
class PipelineClock {
 public:
  virtual ~PipelineClock() = default;
  virtual void start() = 0;
  virtual double now() const = 0;
  /// Called when an item's work is done.
  virtual void done(const pipe::Item&) {}
  /// Called when the work of an extra is done.
  virtual void extra_done(const pipe::FilledItem&) {}
  /// Called when a message has come, which its sender sent at `sent` by its clock.
  virtual void received(double /*sent*/) {}
};

/// The time that passes.
class SteadyPipelineClock final : public PipelineClock {
 public:
  void start() override { start_ = Clock::now(); }
  double now() const override { return seconds_since(start_); }

 private:
  Clock::time_point start_ = Clock::now();
};

/// The time that would pass if items took the seconds of `costs`, and extras those of `extra_seconds`, by their number.
/// Whatever the machine does, spans are then those of pipe::simulate().
class VirtualPipelineClock final : public PipelineClock {
 public:
  explicit VirtualPipelineClock(pipe::Costs costs, std::vector<double> extra_seconds = {})
      : costs_(std::move(costs)), extra_seconds_(std::move(extra_seconds)) {}
  void start() override { now_ = 0; }
  double now() const override { return now_; }
  void done(const pipe::Item& item) override { now_ += pipe::seconds_of(item, costs_); }
  void extra_done(const pipe::FilledItem& extra) override { now_ += extra_seconds_.at(extra.extra); }
  void received(double sent) override { now_ = std::max(now_, sent + costs_.message); }

 private:
  const pipe::Costs costs_;
  const std::vector<double> extra_seconds_;
  double now_ = 0;
};

}  // namespace spillway::runtime
