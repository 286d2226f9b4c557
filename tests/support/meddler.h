// A double of a pager's other users: random calls of everything that a user may ask of it at any time.
#pragma once
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "swap/pager/pager.h"

namespace spillway::testing {
using namespace swap;

/// A source of random pager calls. It evicts some pages or all, starts page-outs and prefetches without a plan, drops
/// prefetches before their use, and changes the advice. None of it may change a byte. One thread uses a Meddler, and
/// others may use the pager meanwhile.
class Meddler {
 public:
  explicit Meddler(uint64_t seed) : random_(seed) {}

  /// Makes one random call. Drops the errors of copies that it sets off, because they do not concern the next caller.
  void act(Pager& pager) {
    try {
      meddle(pager);
    } catch (const std::runtime_error&) {
    }
    ++acts_;
  }
  int64_t acts() const { return acts_; }

 private:
  void meddle(Pager& pager) {
    switch (random_() % 8) {
      case 0:
        return pager.evict_all();
      case 1:
      case 2:
        return evict_some(pager);
      case 3:
      case 4:
        for (PageId id : some_pages(pager)) pager.prefetcher().start_page_out(id);
        return;
      case 5:
        for (PageId id : some_pages(pager)) pager.replayer().replay(id);
        for (PageId id : some_pages(pager)) (void)pager.prefetcher().try_page_in(id);
        return;
      case 6:  // prefetches that are dropped again
        for (PageId id : some_pages(pager)) (void)pager.prefetcher().try_page_in(id);
        return evict_some(pager);
      default:
        for (PageId id : some_pages(pager)) pager.table().set_next_use(id, static_cast<int64_t>(random_() % 1000));
        if (random_() % 4 == 0) pager.table().forget_next_uses(random_() % kUsers);
    }
  }
  void evict_some(Pager& pager) {
    const Ledger& ledger = pager.device().ledger();
    const int64_t paged = pager.paged_bytes();
    if (ledger.budget_bytes() == kUnlimitedBytes) return pager.evict_all();
    pager.reclaim(ledger.budget_bytes() - ledger.used_bytes() + static_cast<int64_t>(random_() % 1000) * paged / 1000);
  }
  std::vector<PageId> some_pages(Pager& pager) {
    std::vector<PageId> ids;
    const uint64_t one_in = 1 + random_() % 6;
    for (UserId user = kNobody; user < kUsers; ++user)
      pager.table().for_each_of(user, [&](Page& page) {
        if (random_() % one_in == 0) ids.push_back(page.id);
      });
    return ids;
  }

  static constexpr UserId kUsers = 4;  // tests have only the first few users
  std::mt19937_64 random_;
  int64_t acts_ = 0;
};

}  // namespace spillway::testing
