// Tests of the pager under random use from several threads. Copy lanes are late, irregular or failing, and memory is
// poisoned when it is freed. Every byte must equal an oracle's, the budget must hold at every instant, and requests
// that fit must be granted. Then come lanes and callers that are broken on purpose, and the tests must find them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/copies.h"
#include "tests/support/meddler.h"
#include "tests/support/random/cases.h"
#include "tests/swap/pager/random_plan.h"
#include "tests/swap/pager/random_world.h"

namespace spillway {
using namespace swap;
namespace {

using testing::CaseLimits;
using testing::CopyFailed;
using testing::kVersionStride;
using testing::Lane;
using testing::Meddler;
using testing::Plan;
using testing::Tracked;
using testing::World;

/// A recipe that moves the words of another page on to another version.
class Advance final : public ReplayRecipe {
 public:
  Advance(const Input& input, uint64_t write_epoch, uint64_t by) : inputs_{input}, write_epoch_(write_epoch), by_(by) {}
  const std::vector<Input>& inputs() const override { return inputs_; }
  uint64_t write_epoch() const override { return write_epoch_; }
  Block* run(Pager& pager) override {
    PageUse use{&pager.replayer().held_page(inputs_.front().page), false, kNextUseKept};
    pager.lease({&use, 1});
    auto return_block = [&](Page*) { pager.unlease({&use, 1}); };
    const std::unique_ptr<Page, decltype(return_block)> leased(use.page, return_block);
    Block* made = pager.device().allocate(use.page->bytes, Category::workspace);
    const auto* from = static_cast<const uint64_t*>(use.page->block->data);
    const size_t words = static_cast<size_t>(use.page->bytes) / sizeof(uint64_t);
    std::transform(from, from + words, static_cast<uint64_t*>(made->data),
                   [&](uint64_t word) { return word + by_ * kVersionStride; });
    return made;
  }

 private:
  std::vector<Input> inputs_;
  const uint64_t write_epoch_;
  const uint64_t by_;
};

/// One thread of the case. It has pages of its own, and takes turns with the pages that all threads share.
class Actor {
 public:
  Actor(World& world, uint64_t number)
      : world_(world), random_(world.plan.seed * 1000 + number), meddler_(random_()), next_version_(number << 32) {}

  void run() {
    for (int64_t i = 0; i < world_.plan.operations && !world_.stop; ++i) one_operation();
  }
  int64_t leases() const { return leases_; }
  std::vector<std::unique_ptr<Tracked>> take_pages() { return std::move(pages_); }

 private:
  void one_operation() {
    switch (pages_.size() < 3 ? 0 : random_() % (world_.plan.replays ? 18 : 12)) {
      case 0:
        return create();
      case 1:
        return destroy();
      case 2:
        return world_.pager.prefetcher().start_page_out(any().buffer.page()->id);
      case 3:
        return prefetch();
      case 4:
        return meddler_.act(world_.pager);
      case 5:
        return use_shared();
      case 6:
        return coin() ? use_scratch() : end_while_leased();
      case 12:
      case 13:
      case 14:
        return derive();
      case 15:
      case 16:
      case 17:
        return discard();
      default:
        return use(/*deeper=*/random_() % 3 == 0);
    }
  }
  Tracked& any() { return *pages_[random_() % pages_.size()]; }
  bool coin() { return random_() % 2; }

  /// Runs work that may be refused, and returns false when it was. Refusals are checked. A thread that is alone is
  /// granted everything that fits beside its leases. Replays are excepted, because they need room of their own.
  template <class Work>
  bool granted(int64_t needed_bytes, Work&& work) {
    try {
      work();
      return true;
    } catch (const OutOfBudget& error) {
      if (world_.plan.threads == 1 && !world_.plan.host_may_be_full() && !world_.plan.replays &&
          held_bytes_ + needed_bytes <= world_.plan.budget_bytes)
        world_.fail(str("refused ", needed_bytes, " bytes beside ", held_bytes_, " that are held: ", error.what()));
    } catch (const CopyFailed&) {
      if (world_.plan.out != Lane::flaky && world_.plan.in != Lane::flaky) throw;
    }
    return false;
  }

  void create() {
    if (pages_.size() >= 12) return destroy();
    const int64_t bytes = world_.plan.sizes[random_() % world_.plan.sizes.size()];
    granted(DeviceMemory::charge_of(bytes),
            [&] { pages_.push_back(std::make_unique<Tracked>(world_.memory, world_.pager, bytes)); });
  }
  void destroy() {
    std::swap(pages_[random_() % pages_.size()], pages_.back());
    pages_.pop_back();
  }
  void prefetch() {
    granted(0, [&] { (void)world_.pager.prefetcher().try_page_in(any().buffer.page()->id); });
  }
  /// Writes one page from another, so that it can be made again from that page.
  void derive() {
    Tracked &page = any(), &input = any();
    if (&page == &input || page.buffer.bytes() != input.buffer.bytes() || input.version == 0) return;
    const PageUse uses[] = {{page.buffer.page(), true}, {input.buffer.page(), false}};
    if (!granted(page.charge() + input.charge(), [&] { world_.pager.lease(uses); })) return;
    if (!input.good()) world_.fail(str("page ", input.buffer.page()->id, " does not hold version ", input.version));
    const uint64_t by = 1 + random_() % 1000;
    page.write(input.version + by);
    world_.pager.unlease(uses);
    page.origin = {{input.buffer.page()->id, input.buffer.page()->write_epoch}, page.buffer.page()->write_epoch, by};
  }
  void discard() {
    std::shuffle(pages_.begin(), pages_.end(), random_);
    auto derived = std::find_if(pages_.begin(), pages_.end(), [](const auto& page) {
      return page->origin.by != 0 && page->origin.write_epoch == page->buffer.page()->write_epoch;
    });
    if (derived == pages_.end()) return;
    const Tracked& page = **derived;
    granted(0, [&] {
      auto recipe = std::make_unique<Advance>(page.origin.input, page.origin.write_epoch, page.origin.by);
      (void)world_.pager.replayer().discard(page.buffer.page()->id, std::move(recipe));
    });
  }
  void use_scratch() {
    const int64_t bytes = world_.plan.sizes[random_() % world_.plan.sizes.size()];
    granted(DeviceMemory::charge_of(bytes), [&] {
      Block* block = world_.memory.allocate(bytes, Category::workspace);
      std::memset(block->data, 7, static_cast<size_t>(bytes));
      world_.memory.release(block);
    });
  }
  /// Ends a page while it is leased. A storage may die while an operator holds the lease, but its record must not.
  void end_while_leased() {
    Tracked& page = any();
    const PageUse uses[] = {{page.buffer.page(), coin()}, {page.buffer.page(), coin()}};
    if (!granted(page.charge(), [&] { world_.pager.lease(uses); })) return;
    if (!page.good()) world_.fail(str("page ", page.buffer.page()->id, " does not hold version ", page.version));
    std::erase_if(pages_, [&](const auto& p) { return p.get() == &page; });
    if (coin()) meddler_.act(world_.pager);
    world_.pager.unlease(uses);
  }
  void use_shared() {
    Tracked& page = world_.shared[random_() % world_.shared.size()];
    std::lock_guard turn(page.mutex);
    use_pages({&page}, false);
  }
  void use(bool deeper) {
    std::vector<Tracked*> pages;
    for (uint64_t n = 1 + random_() % 3; n > 0; --n) pages.push_back(&any());
    use_pages(pages, deeper);
  }

  /// Leases, checks, writes and unleases the pages. Within the lease it may do the same with others.
  void use_pages(const std::vector<Tracked*>& pages, bool deeper) {
    std::vector<PageUse> uses;
    int64_t needed_bytes = 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      uses.push_back(
          {pages[i]->buffer.page(), coin(), coin() ? kNextUseUnknown : static_cast<int64_t>(random_() % 1000)});
      const bool again = std::find(pages.begin(), pages.begin() + static_cast<int64_t>(i), pages[i]) !=
                         pages.begin() + static_cast<int64_t>(i);
      if (!again && !held_.count(pages[i])) needed_bytes += pages[i]->charge();
    }
    if (!granted(needed_bytes, [&] { world_.pager.lease(uses); })) return;
    ++leases_;
    held_bytes_ += needed_bytes;
    for (Tracked* page : pages) held_.insert(page);
    for (Tracked* page : pages)
      if (!page->good()) world_.fail(str("page ", page->buffer.page()->id, " does not hold version ", page->version));
    if (deeper) {
      if (coin()) meddler_.act(world_.pager);
      use(/*deeper=*/false);
    }
    for (size_t i = 0; i < pages.size(); ++i)
      if (uses[i].write || world_.plan.writes_without_saying) pages[i]->write(++next_version_);
    for (Tracked* page : pages) held_.erase(held_.find(page));
    held_bytes_ -= needed_bytes;
    world_.pager.unlease(uses);
  }

  World& world_;
  std::mt19937_64 random_;
  Meddler meddler_;
  uint64_t next_version_;
  std::vector<std::unique_ptr<Tracked>> pages_;
  std::multiset<Tracked*> held_;
  int64_t held_bytes_ = 0;
  int64_t leases_ = 0;
};

/// Repeats work that a failing lane or a full host may refuse for a while.
template <class Work>
void insist(World& world, Work&& work) {
  for (int attempt = 0;; ++attempt) {
    try {
      return work();
    } catch (const CopyFailed& error) {
      if (attempt == 200) return world.fail(error.what());
    }
  }
}

void check_the_end(World& world, std::vector<std::unique_ptr<Tracked>>& pages) {
  if (world.ledger.peak_bytes() > world.plan.budget_bytes || world.arena.peak_bytes() > world.plan.budget_bytes)
    world.fail(str("held ", world.arena.peak_bytes(), " bytes under a budget of ", world.plan.budget_bytes));
  world.ledger.set_budget(kUnlimitedBytes);
  insist(world, [&] { world.pager.unregister_resident(); });
  for (auto& page : pages)
    if (!page->good()) world.fail("a page that came home is not what it was");
  for (Tracked& page : world.shared)
    if (!page.good()) world.fail("a shared page that came home is not what it was");
  pages.clear();
  world.shared.clear();
  for (int64_t left :
       {world.ledger.used_bytes(), world.arena.used_bytes(), world.host_bytes_left(), world.pager.paged_bytes()})
    if (left != 0) world.fail(str(left, " bytes are left when all is gone"));
}

std::string run_plan(const Plan& plan) {
  World world(plan);
  for (int i = 0; i < 3; ++i)
    insist(world, [&] { world.shared.emplace_back(world.memory, world.pager, plan.sizes.front()); });
  std::deque<Actor> actors;
  for (int64_t t = 0; t < plan.threads; ++t) actors.emplace_back(world, static_cast<uint64_t>(t + 1));
  std::vector<std::thread> others;
  for (size_t t = 1; t < actors.size(); ++t)
    others.emplace_back([&actor = actors[t], &world] {
      try {
        actor.run();
      } catch (const std::exception& error) {
        world.fail(str("threw: ", error.what()));
      }
    });
  actors.front().run();
  for (std::thread& other : others) other.join();
  std::vector<std::unique_ptr<Tracked>> pages;
  int64_t leases = 0;
  for (Actor& actor : actors) {
    for (auto& page : actor.take_pages()) pages.push_back(std::move(page));
    leases += actor.leases();
  }
  check_the_end(world, pages);
  if (!plan.host_may_be_full() && plan.operations >= 150 && leases < plan.operations * plan.threads / 10)
    world.fail(str("only ", leases, " leases were granted"));
  return world.failure;
}

TEST(PagerRandomTest, RandomUseKeepsEveryByteAndTheBudget) {
  testing::run_random_cases(
      40, [](uint64_t seed, const CaseLimits& limits) { return run_plan(testing::plan_of(seed, limits)); });
}

/// Returns a plan with uniform sizes, so that a late copy into other pages' memory hits bytes and no descriptors.
Plan breakable_plan(uint64_t seed) {
  return {.seed = seed, .operations = 300, .sizes = {1 << 17}, .budget_bytes = 5 * DeviceMemory::charge_of(1 << 17)};
}

/// Checks that the random cases find each broken promise soon, because only then are they worth running.
TEST(PagerRandomTest, FindsPageOutsWhoseTicketsComeEarly) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Plan plan = breakable_plan(seed);
    EXPECT_EQ(run_plan(plan), "") << seed;
    plan.out = Lane::early_ticket;
    EXPECT_NE(run_plan(plan), "") << seed;
  }
}

TEST(PagerRandomTest, FindsPageInsWhoseTicketsComeEarly) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Plan plan = breakable_plan(seed);
    plan.in = Lane::early_ticket;
    EXPECT_NE(run_plan(plan), "") << seed;
  }
}

TEST(PagerRandomTest, FindsACallerThatWritesWhatItLeasedForReading) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Plan plan = breakable_plan(seed);
    plan.writes_without_saying = true;
    plan.out = Lane::same_thread;  // found without a race in memory, which a sanitizer would find first
    EXPECT_NE(run_plan(plan), "") << seed;
  }
}

}  // namespace
}  // namespace spillway
