// Which pages leave for others' room, and how. Everything here runs under the lock.
#include <tuple>

#include "core/error.h"
#include "swap/pager/pager.h"

namespace spillway {
namespace {

[[noreturn]] void refuse(int64_t bytes, const Ledger& ledger) {
  auto who = OperatorScope::current();
  throw OutOfBudget(str("[pager.evict] cannot free ", format_bytes(bytes), " for ", who.empty() ? "an allocation" : who,
                        ": ", format_bytes(ledger.used_bytes()), " of ", format_bytes(ledger.budget_bytes()),
                        " are held and nothing more can leave (", ledger.device(), ")"),
                    bytes, ledger.budget_bytes());
}

}  // namespace

/// Called where an error of the page's copy out is being handled.
void Pager::Refusals::note(PageId page) {
  if (!first) first = std::current_exception();
  pages.insert(page);
}

bool Pager::fits(int64_t bytes) const {
  return bytes <= device_.ledger().room_bytes();
}

/// Pages whose copies out fail are left out; the first error is thrown when nothing else can leave.
void Pager::make_room(Guard& guard, int64_t bytes) {
  Refusals refused;
  while (!fits(bytes)) {
    reap();
    if (fits(bytes)) return;
    Page* victim = next_victim(-1, refused);
    if (!victim) {
      if (fits(bytes) || make_progress(guard)) continue;
      if (refused.first) std::rethrow_exception(refused.first);
      if (device_.ledger().exceed(bytes)) return;
      refuse(bytes, device_.ledger());
    }
    if (victim->clean) {
      drop(guard, *victim);
      continue;
    }
    const PageId id = victim->id;
    try {
      if (!victim->outgoing) begin_page_out(*victim);
      begin_another(*victim, refused);
      finish_page_out(guard, *victim);
    } catch (...) {
      refused.note(id);
    }
  }
}

/// One more leaves beside `first`, so that the next wait is shorter.
void Pager::begin_another(Page& first, const Refusals& refused) {
  ++first.leases;
  Page* next = choose_victim(-1, /*clean_only=*/false, refused);
  --first.leases;
  if (next && !next->clean && !next->outgoing) (void)try_page_out(*next);
}

/// Waits for something that frees bytes or makes a page evictable. False: nothing is under way.
bool Pager::make_progress(Guard& guard) {
  if (!lingering_.empty()) {
    wait(guard, lingering_.front().copy);
    reap();
    return true;
  }
  for (auto& [id, page] : pages_) {
    if (!page->incoming || page->leases) continue;
    Page& coming = *page;
    if (!coming.copy.joinable()) {
      wait(guard, coming.copy);
    } else {
      try {
        finish_page_in(guard, coming);
      } catch (const std::exception&) {  // it is absent, which frees its room; whoever needs it tries again and reports
      }
    }
    return true;
  }
  return false;
}

/// The page that leaves next. Once a copy out was refused, clean pages come first: they need none.
Page* Pager::next_victim(int64_t used_after, const Refusals& refused) {
  Page* clean = refused.first ? choose_victim(used_after, /*clean_only=*/true, refused) : nullptr;
  return clean ? clean : choose_victim(used_after, /*clean_only=*/false, refused);
}

Page* Pager::choose_victim(int64_t used_after, bool clean_only, const Refusals& refused) {
  Page* best = nullptr;
  auto rank = [&](const Page& page) {
    return std::make_tuple(!goes_last(page), page.next_use_for_eviction(), page.clean, page.outgoing, ~page.last_use);
  };
  for (auto& [id, page] : pages_) {
    if (!page->block || page->leases || page->ended || page->next_use_for_eviction() <= used_after) continue;
    settle(*page);
    if (!page->block || (!page->clean && (clean_only || refused.pages.contains(id)))) continue;
    if (!best || rank(*page) > rank(*best)) best = page.get();
  }
  return best;
}

/// Small pages of which no schedule knows the next use.
bool Pager::goes_last(const Page& page) const noexcept {
  return page.next_use == kNextUseUnknown && !page.released &&
         DeviceMemory::charge_of(page.bytes) < DeviceMemory::charge_of(small_bytes_);
}

/// One round towards the page's absence.
void Pager::send_away(Guard& guard, Page& page) {
  settle(page);
  if (!page.block) return;
  if (!page.clean && !page.outgoing) begin_page_out(page);
  if (!page.outgoing)
    drop(guard, page);
  else
    finish_page_out(guard, page);
}

/// Sends the page away, but notes a copy out that cannot be had instead of throwing.
void Pager::try_send_away(Guard& guard, Page& page, Refusals& refused) {
  const PageId id = page.id;
  try {
    send_away(guard, page);
  } catch (...) {
    refused.note(id);
  }
}

/// The page's copy out is done, or compute ordered behind it, so that its block may go. Throws what it failed with.
void Pager::finish_page_out(Guard& guard, Page& page) {
  Ticket copy = page.copy;
  if (copy.joinable() && pass(page)) return;
  wait(guard, copy, &Ticket::join);
  copy.join();
}

bool Pager::drop(Guard& guard, Page& page) {
  auto owner = page.owner->keep_alive();
  if (!owner) {  // dies on another thread, which waits for the lock to say so
    pause(guard);
    return false;
  }
  guard.kept.push_back(std::move(owner));
  Block* block = page.block;
  page.owner->vacate(page);
  page.block = nullptr;
  detach(block);
  paged_bytes_ -= block->charged_bytes;
  device_.free(block);
  note_use(page);
  ++stats_.clean_drops;
  return true;
}

}  // namespace spillway
