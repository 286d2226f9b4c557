/// When the page-ins of a schedule are issued.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

struct PageInInputs {
  const StepTrace& trace;
  const Simulated& plan;  ///< who leaves, who is demanded and what is held, were copies instant
  int64_t limit_bytes;    ///< of what is held with the page-ins
  const LinkRates& rates;
  const Absences& on_disk;         ///< what comes from there
  const std::vector<bool>& early;  ///< by slot: comes back as soon as there is room
  bool in_order;                   ///< what is needed first gets room first; else what is needed last does
};

/// Places the plan's page-ins backwards from their deadlines, so that the link serves each just before the one that
/// follows it, where there is room from then on; also from the end of one step into the next. Sorted by their triggers.
std::vector<Actions::PageIn> place_page_ins(const PageInInputs& inputs);

}  // namespace spillway
