// Observers that play the gate's part: one evicts everything after every operator, one finds schemas that are wrong.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "swap/gate/operator_observer.h"
#include "swap/gate/operator_traits.h"
#include "swap/gate/storage_page.h"
#include "swap/session.h"

namespace spillway::testing {
using namespace swap;

/// An observer that evicts everything from the device after every operator.
class EvictEverything final : public OperatorObserver {
 public:
  void released(Pager& pager) override { pager.evict_all(); }
};

/// An observer that finds undeclared writes. It compares the bytes of every argument that an operator does not declare
/// written before and after it.
class SchemaChecker final : public OperatorObserver {
 public:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override {
    kept_.clear();
    OperatorTraits traits = traits_of(op);
    const size_t count = traits.writes.size();
    std::set<const c10::StorageImpl*> written;
    for (size_t a = 0; a < count; ++a)
      if (traits.writes[a])
        visit_storages(torch::jit::peek(stack, a, count), [&](c10::StorageImpl& s) { written.insert(&s); });
    if (traits.kind != OperatorKind::kernel) return;
    for (size_t a = 0; a < count; ++a)
      visit_storages(torch::jit::peek(stack, a, count), [&](c10::StorageImpl& s) {
        const void* data = s._mutable_data_ptr_no_checks().get();
        if (written.count(&s) || !data || s.device_type() != c10::kCPU) return;
        const char* bytes = static_cast<const char*>(data);
        kept_.push_back({&s, std::string(traits.name), std::vector<char>(bytes, bytes + s.nbytes())});
      });
  }
  void after(const c10::OperatorHandle&, const torch::jit::Stack&) override {
    for (const Kept& kept : kept_) {
      ++compared_;
      const void* data = kept.storage->_mutable_data_ptr_no_checks().get();
      if (!data || kept.storage->nbytes() != kept.bytes.size() ||
          std::memcmp(data, kept.bytes.data(), kept.bytes.size()) != 0)
        liars_.insert(kept.name);
    }
    kept_.clear();
  }
  const std::set<std::string>& liars() const { return liars_; }
  size_t compared() const { return compared_; }

 private:
  struct Kept {
    c10::StorageImpl* storage;
    std::string name;
    std::vector<char> bytes;
  };
  std::vector<Kept> kept_;
  std::set<std::string> liars_;
  size_t compared_ = 0;
};

}  // namespace spillway::testing
