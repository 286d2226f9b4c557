#include "swap/conductor/trace_recorder.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"

namespace spillway::swap {
namespace {

constexpr int32_t kNotAwaited = -2;

}  // namespace

void TraceRecorder::begin_step(std::string_view kind) {
  trace_ = {};
  trace_.kind = kind;
  trace_.external_bytes = pager_.device().external_bytes();
  slots_.clear();
}

void TraceRecorder::start_clock() {
  delayed_ = pager_.delayed_seconds();
  last_end_ = Clock::now();
}

/// Returns the seconds since the last operator, without waits for copies and replays.
double TraceRecorder::seconds_since_last_operator() const {
  const std::chrono::duration<double> since = Clock::now() - last_end_;
  return std::max(0.0, since.count() - (pager_.delayed_seconds() - delayed_));
}

StepTrace TraceRecorder::end_step(std::span<const ComputeClock::Times> measured) {
  for (Message& message : trace_.messages)
    if (message.before == kNotAwaited) message.before = std::ssize(trace_.operators);
  trace_.tail_seconds = seconds_since_last_operator();
  if (measured.size() != trace_.operators.size()) return std::move(trace_);
  // The device's times count, because the host was ahead of it, and waited at the end.
  for (size_t i = 0; i < measured.size(); ++i) {
    trace_.operators[i].seconds = measured[i].seconds;
    trace_.operators[i].host_seconds = measured[i].gap_seconds;
  }
  if (!measured.empty()) trace_.tail_seconds = 0;
  return std::move(trace_);
}

void TraceRecorder::begin_operator(const OperatorCall& call, int64_t unpaged_bytes) {
  OperatorRecord& op = trace_.operators.emplace_back();
  op.identity = call.identity;
  op.name = call.name;
  op.replayable = call.replayable;
  op.host_seconds = seconds_since_last_operator();
  // What libraries have been charged for since the step began is added to every operator at the step's end.
  op.unpaged_bytes = unpaged_bytes - (pager_.device().external_bytes() - trace_.external_bytes);
}

void TraceRecorder::end_operator(double seconds, int64_t own_bytes) {
  trace_.operators.back().seconds = seconds;
  trace_.operators.back().own_bytes = own_bytes;
}

int64_t TraceRecorder::sent(double seconds) {
  trace_.messages.push_back({.after = index(), .before = kNotAwaited, .seconds = seconds});
  return std::ssize(trace_.messages) - 1;
}

void TraceRecorder::awaited(int64_t number) {
  if (number < std::ssize(trace_.messages)) trace_.messages[number].before = index() + 1;
}

int32_t TraceRecorder::add_slot(const Page& page, int32_t birth) {
  const int32_t s = trace_.slots.size();
  slots_[page.id] = s;
  Slot& slot = trace_.slots.emplace_back();
  slot.bytes = DeviceMemory::charge_of(page.bytes);
  slot.category = page.category;
  slot.birth = birth;
  slot.page = page.id;
  return s;
}

std::pair<int32_t, bool> TraceRecorder::find_or_add(const Page& page) {
  const auto known = slots_.find(page.id);
  if (known != slots_.end()) return {known->second, false};
  return {add_slot(page, kBeforeStep), true};
}

int32_t TraceRecorder::add_argument(const Birth& birth) {
  const int32_t s = add_slot(*birth.page, index());
  trace_.slots.back().position = birth.position;
  trace_.operators.back().births.push_back(s);
  return s;
}

int32_t TraceRecorder::add_output(const Birth& birth) {
  const int32_t s = add_slot(*birth.page, index());
  Slot& slot = trace_.slots.back();
  OperatorRecord& op = trace_.operators.back();
  slot.position = birth.position;
  slot.born_as_output = !birth.streamed;
  slot.born_streamed = birth.streamed;
  slot.uses.push_back(index());
  slot.writes.push_back(index());
  op.births.push_back(s);
  if (birth.streamed) op.streamed.push_back(s);
  return s;
}

bool TraceRecorder::add_use(const PageUse& use, bool streamed) {
  const auto [s, is_new] = find_or_add(*use.page);
  Slot& slot = trace_.slots[s];
  OperatorRecord& op = trace_.operators.back();
  if (slot.uses.empty() || slot.uses.back() != index()) {
    (streamed ? op.streamed : op.touched).push_back(s);
    if (!streamed) op.leased_bytes += slot.bytes;
    slot.uses.push_back(index());
  }
  // Managed memory has one copy of its bytes: they leave after a use as if the use had written them.
  const bool writes = use.write || use.page->is_managed();
  if (writes && (slot.writes.empty() || slot.writes.back() != index())) slot.writes.push_back(index());
  return is_new;
}

bool TraceRecorder::end_page(PageId page) {
  const auto known = slots_.find(page);
  if (known == slots_.end()) return false;
  trace_.slots[known->second].death = std::max(index(), 0);
  slots_.erase(known);
  return true;
}

}  // namespace spillway::swap
