/// The pages of one operator call: its storages, and the leases that keep them resident.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "swap/gate/autograd_purposes.h"
#include "swap/gate/operator_traits.h"
#include "swap/gate/session_state.h"
#include "swap/gate/storage_page.h"

namespace spillway::swap {

/// The storages of the last `count` values on a stack, in the order of visit_storages(), and their pages.
class StoragesOfCall {
 public:
  struct Entry {
    c10::StorageImpl* storage;
    Page* page;           ///< nullptr: no page when they were found
    int64_t least_bytes;  ///< least_page_bytes() of the value
    uint32_t place;       ///< position of the value
    bool is_weight;       ///< the value is a weight
  };

  StoragesOfCall(SessionState& session, const torch::jit::Stack& stack, size_t count, int64_t min_page_bytes)
      : session_(session) {
    for (size_t place = 0; place < count; ++place) {
      const c10::IValue& value = torch::jit::peek(stack, place, count);
      if (value.isInt() || value.isBool() || value.isDouble() || value.isNone()) continue;
      const int64_t least_bytes = least_page_bytes(value, min_page_bytes);
      const bool of_weight = value.isTensor() && is_weight(value.toTensor());
      visit_storages(value, [&](c10::StorageImpl& storage) {
        entries_.push_back({&storage, nullptr, least_bytes, static_cast<uint32_t>(place), of_weight});
      });
    }
  }
  /// Finds the pages. Must be called under the pager's lock.
  void find_pages() {
    for (Entry& entry : entries_) entry.page = page_of(*entry.storage);
  }
  /// Returns the page that was found, or registers one; nullptr for a storage that cannot be paged.
  Page* page_or_register(const Entry& entry, bool& is_new) {
    Pager& pager = session_.pager;
    Page* page =
        swap::page_or_register(*entry.storage, entry.page, pager, entry.least_bytes, session_.conductor.user(), is_new);
    if (entry.page && !page) pager.table().locked([&] { find_pages(); });  // it ended; the call may have it again
    if (entry.is_weight && has_no_purpose(*entry.storage, page))
      pager.table().locked([&] { give_purpose(*entry.storage, pager.table(), Category::weights); });
    return page;
  }
  const Entry* begin() const { return entries_.begin(); }
  const Entry* end() const { return entries_.end(); }

 private:
  SessionState& session_;
  c10::SmallVector<Entry, 8> entries_;
};

/// The pages of one operator call, leased while it lives.
class OperatorLease {
 public:
  explicit OperatorLease(SessionState& session) : session_(session) {}
  OperatorLease(const OperatorLease&) = delete;
  OperatorLease& operator=(const OperatorLease&) = delete;
  ~OperatorLease() { release(); }

  /// Collects the pages of the arguments. Pages that `plan` uses in windows are registered, but not leased.
  void collect(const OperatorTraits& traits, const torch::jit::Stack& stack, const WindowPlan* plan,
               int64_t min_page_bytes) {
    const size_t count = traits.writes.size();
    StoragesOfCall storages(session_, stack, count, min_page_bytes);
    session_.pager.table().locked([&] { storages.find_pages(); });
    int32_t position = 0;
    for (const StoragesOfCall::Entry& entry : storages) {
      bool is_new = false;
      Page* page = storages.page_or_register(entry, is_new);
      if (page) add(plan, entry.place, {page, traits.writes[entry.place], kNextUseKept});
      if (is_new) births.push_back({page, position});
      ++position;
    }
  }
  /// Adds one page. A page that the plan only streams is leased window by window; a page that it does not touch is not
  /// leased.
  void add(const WindowPlan* plan, size_t argument, const PageUse& use) {
    const ArgumentUse touch = plan ? plan->argument_uses[argument] : ArgumentUse::whole;
    if (touch == ArgumentUse::whole) uses.push_back(use);
    if (touch != ArgumentUse::windows) return;
    streamed.push_back(use);
    streamed_ids_.push_back(use.page->id);
  }
  /// Leases the pages of a call of `op`, whose arguments are on top of `stack`. Throws OutOfBudget, with the contents
  /// of the operator's lists of tensors where it has some.
  void lease(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void release() {
    if (!leased_) return;
    if (!uses.empty()) session_.pager.unlease(uses);
    for (size_t i = 0; i < streamed.size(); ++i)  // pages may have ended with the call's arguments
      if (streamed[i].next_use != kNextUseKept)
        session_.pager.table().set_next_use(streamed_ids_[i], streamed[i].next_use);
    leased_ = false;
  }

  c10::SmallVector<PageUse, 16> uses;
  c10::SmallVector<PageUse, 4> streamed;
  c10::SmallVector<Birth, 8> births;

 private:
  SessionState& session_;
  c10::SmallVector<PageId, 4> streamed_ids_;
  bool leased_ = false;
};

}  // namespace spillway::swap
