/// The placement of a schedule's page-ins: the operator after which each is issued.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

struct PageInInputs {
  const StepTrace& trace;
  const Simulated& plan;  ///< evictions, demanded page-ins and held bytes, were copies instant
  int64_t limit_bytes;    ///< maximum of the bytes held with the page-ins
  const LinkRates& rates;
  const AbsenceSet& on_disk;                ///< absences that end with a read from disk
  const std::vector<bool>& prefetch_early;  ///< by slot: comes back as soon as there is room
  bool prefetch_in_use_order;               ///< slots needed first get room first; else slots needed last do
};

/// Places the plan's page-ins backwards from their deadlines. The link then serves each just before the one that
/// follows it, where there is room from then on. Page-ins are also placed from the end of one step into the next.
/// Returns them sorted by their triggers.
std::vector<Actions::PageIn> place_page_ins(const PageInInputs& inputs);

}  // namespace spillway::swap
