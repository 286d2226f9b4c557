// What can be done ahead when no schedule says what comes next.
#include <algorithm>

#include "core/error.h"
#include "swap/pager/pager.h"

namespace spillway {

void Pager::work_ahead_of_demand() {
  Guard guard(mutex_);
  const int64_t budget = device_.ledger().budget_bytes();
  if (budget == kUnlimitedBytes) return;
  reap();
  if (stats_.demand_page_ins > demands_seen_) fetch_back(budget / 8);
  demands_seen_ = stats_.demand_page_ins;
  if (!fits(budget / 4)) clean_ahead(budget / 4);
}

/// Copies out, of the least recently used `bytes` on the device, what could leave but is neither clean nor on its way.
/// All that holds room counts, what is coming in too: else this would end at what is in use, again after every write.
void Pager::clean_ahead(int64_t bytes) {
  std::vector<Page*> oldest;
  for (auto& [id, page] : pages_)
    if ((page->block || page->incoming) && !page->ended) oldest.push_back(page.get());
  std::sort(oldest.begin(), oldest.end(), [](Page* a, Page* b) { return a->last_use < b->last_use; });
  for (Page* page : oldest) {
    if (bytes <= 0) return;
    bytes -= DeviceMemory::charge_of(page->bytes);
    // A copy of managed memory takes the bytes away.
    const bool dirty = page->block && !page->block->stays && !page->clean && !page->outgoing;
    const bool could_leave = !page->leases && page->bytes >= small_bytes_ && page->next_use == kNextUseUnknown;
    if (dirty && could_leave && !try_page_out(*page)) return;
  }
}

/// Fetches absent pages, the last used first, as long as `reserve` bytes stay free.
void Pager::fetch_back(int64_t reserve) {
  std::vector<Page*> latest;
  for (auto& [id, page] : pages_)
    if (!page->block && !page->incoming && !page->recipe && !page->away && !page->ended && page->bytes >= small_bytes_)
      latest.push_back(page.get());
  std::sort(latest.begin(), latest.end(), [](Page* a, Page* b) { return a->last_use > b->last_use; });
  for (Page* page : latest)
    if (!fits(DeviceMemory::charge_of(page->bytes) + reserve) || !try_page_in(*page)) return;
}

}  // namespace spillway
