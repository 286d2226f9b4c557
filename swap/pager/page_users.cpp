// What Sessions that share a pager ask of it: their own pages, and which pages ended.
#include <algorithm>
#include <unordered_set>

#include "swap/pager/pager.h"

namespace spillway {

UserId Pager::add_user() {
  std::lock_guard lock(mutex_);
  ++users_;
  return ++last_user_;
}

int64_t Pager::users() const {
  std::lock_guard lock(mutex_);
  return users_;
}

void Pager::retire(UserId user) noexcept {
  stop_noting_ends(user);
  Guard guard(mutex_);
  --users_;
  std::unordered_set<PageId> stuck;  // what is to be made of them cannot be made now, so they stay pages
  auto staying = [&](auto& entry) {
    const Page& page = *entry.second;
    return page.user == user && !page.leases && !page.ended && (page.block || page.incoming) && !stuck.count(page.id);
  };
  for (;;) {
    auto found = std::find_if(pages_.begin(), pages_.end(), staying);
    if (found == pages_.end()) return;
    Page& page = *found->second;
    ++page.leases;  // keeps the record while the lock is given up
    if (!retire(guard, page)) stuck.insert(page.id);
    if (--page.leases == 0 && page.ended) pages_.erase(page.id);
  }
}

/// One round towards the page's absence or, where that fails, its end. Under a lease. False: neither is possible.
bool Pager::retire(Guard& guard, Page& page) noexcept {
  const UserId user = page.user;
  try {
    if (page.incoming && !page.copy.done())
      wait(guard, page.copy);
    else if (page.incoming)
      finish_page_in(guard, page);
    else
      send_away(guard, page);
    return true;
  } catch (...) {  // a failed copy, or the host is full; after a failed page-in it is absent anyway
  }
  try {
    if (page.block) restore_readers(guard, page.id);
  } catch (...) {
    return false;
  }
  if (page.block && page.user == user && page.leases == 1 && page.holds == 0) forget(page);
  return true;
}

void Pager::forget_next_uses(UserId user) {
  for_each_of(user, [](Page& page) {
    page.next_use = kNextUseUnknown;
    page.released = false;
  });
}

void Pager::note_ends(UserId user) {
  stop_noting_ends(user);
  std::lock_guard lock(mutex_);
  noting_.push_back({user, {}});
}

void Pager::take_ended(UserId user, std::vector<PageId>& ended) {
  std::lock_guard lock(mutex_);
  for (EndsOf& ends : noting_) {
    if (ends.user != user) continue;
    ended.insert(ended.end(), ends.ended.begin(), ends.ended.end());
    ends.ended.clear();
  }
}

void Pager::stop_noting_ends(UserId user) noexcept {
  std::lock_guard lock(mutex_);
  std::erase_if(noting_, [&](const EndsOf& ends) { return ends.user == user; });
}

}  // namespace spillway
