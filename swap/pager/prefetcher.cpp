#include "swap/pager/prefetcher.h"

#include <algorithm>
#include <vector>

#include "core/bytes.h"

namespace spillway::swap {

using enum PageState;

void Prefetcher::start_page_out(PageId id) {
  PagerLock lock(table_.mutex());
  // A leased page may be written through a pointer while the copy reads it, and would then be clean with old bytes.
  if (Page* page = table_.find(id); page && page->is(resident_dirty) && page->leases == 0)
    (void)transfer_.try_page_out(*page);
}

bool Prefetcher::try_page_in(PageId id) {
  PagerLock lock(table_.mutex());
  Page* page = table_.find(id);
  if (!page) return true;
  transfer_.poll_page_out(*page);
  if (!page->is(absent)) return page->is_usable() || !page->on_device();
  if (page->host_pins > 0) return false;
  table_.free_completed();
  return evictor_.drop_clean(lock, DeviceMemory::charge_of(page->bytes), page->use.next_use) &&
         transfer_.try_page_in(*page);
}

void Prefetcher::work_without_schedule() {
  PagerLock lock(table_.mutex());
  const int64_t budget = device_.ledger().budget_bytes();
  if (budget == kUnlimitedBytes) return;
  table_.free_completed();
  const int64_t demands = table_.stats().demand_page_ins;
  if (demands > demands_seen_) page_in_recent(budget / 8);
  demands_seen_ = table_.stats().demand_page_ins;
  if (!evictor_.fits(budget / 4)) page_out_ahead(budget / 4);
}

/// Copies out, of the least recently used `bytes` on the device, pages that could leave but are neither clean nor on
/// their way. All pages that hold room count, also those coming in. Otherwise this would end at the pages in use, again
/// after every write.
void Prefetcher::page_out_ahead(int64_t bytes) {
  std::vector<Page*> oldest;
  for (auto& [id, page] : table_.pages())
    if (page->on_device() || page->is(paging_in)) oldest.push_back(page.get());
  std::sort(oldest.begin(), oldest.end(), [](Page* a, Page* b) { return a->use.last_use < b->use.last_use; });
  for (Page* page : oldest) {
    if (bytes <= 0) return;
    bytes -= DeviceMemory::charge_of(page->bytes);
    const bool dirty =
        page->is(resident_dirty) && !page->is_managed();  // a copy of managed memory takes the bytes away
    const bool may_leave = !page->leases && page->bytes >= small_bytes_ && page->use.next_use == kNextUseUnknown;
    if (dirty && may_leave && !transfer_.try_page_out(*page)) return;
  }
}

/// Starts page-ins of absent pages, the last used first, as long as `reserve` bytes stay free.
void Prefetcher::page_in_recent(int64_t reserve) {
  std::vector<Page*> latest;
  for (auto& [id, page] : table_.pages())
    if (page->may_page_in() && page->bytes >= small_bytes_) latest.push_back(page.get());
  std::sort(latest.begin(), latest.end(), [](Page* a, Page* b) { return a->use.last_use > b->use.last_use; });
  for (Page* page : latest)
    if (!evictor_.fits(DeviceMemory::charge_of(page->bytes) + reserve) || !transfer_.try_page_in(*page)) return;
}

}  // namespace spillway::swap
