#include "swap/gate/session_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/memory/fork.h"

namespace spillway::swap {
namespace {

/// The kind under which LibTorch's thread-local debug information holds a Session; nothing on a server uses this kind.
constexpr auto kInfoKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

struct SessionInfo final : c10::DebugInfoBase {
  explicit SessionInfo(SessionScope given) : scope(std::move(given)) {}
  const SessionScope scope;
};

using DebugInfo = c10::ThreadLocalDebugInfo;

/// Returns the kind of the topmost entry of this thread's debug information; nothing where it is empty.
std::optional<c10::DebugInfoKind> top_kind() {
  if (!DebugInfo::current()) return std::nullopt;
  for (int kind = 0; kind <= static_cast<int>(c10::DebugInfoKind::TEST_INFO_2); ++kind) {
    try {
      (void)DebugInfo::_peek(static_cast<c10::DebugInfoKind>(kind));
      return static_cast<c10::DebugInfoKind>(kind);
    } catch (const c10::Error&) {  // another kind is on top
    }
  }
  return std::nullopt;
}

/// Takes the entries that lie on the topmost Session's off the stack while it lives.
class EntriesAbove {
 public:
  EntriesAbove() {
    for (auto kind = top_kind(); kind && *kind != kInfoKind; kind = top_kind())
      entries_.emplace_back(*kind, DebugInfo::_pop(*kind));
  }
  ~EntriesAbove() {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry)
      DebugInfo::_push(entry->first, std::move(entry->second));
  }
  EntriesAbove(const EntriesAbove&) = delete;
  EntriesAbove& operator=(const EntriesAbove&) = delete;

 private:
  std::vector<std::pair<c10::DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>>> entries_;
};

}  // namespace

const SessionScope* SessionScope::current() {
  auto* info = static_cast<SessionInfo*>(c10::ThreadLocalDebugInfo::get(kInfoKind));
  return info && !info->scope.alive.expired() && !forked_while_paging() ? &info->scope : nullptr;
}

GateGuards::GateGuards(SessionScope scope) : was_open_(SessionScope::current() != nullptr) {
  const EntriesAbove above;
  DebugInfo::_push(kInfoKind, std::make_shared<SessionInfo>(std::move(scope)));
  c10::impl::tls_set_dispatch_key_included(kGateKey, true);
}

GateGuards::~GateGuards() {
  const EntriesAbove above;
  if (top_kind() == kInfoKind) DebugInfo::_pop(kInfoKind);
  c10::impl::tls_set_dispatch_key_included(kGateKey, was_open_);
}

bool gate_is_as_opened() {
  return !SessionScope::current() || c10::impl::tls_is_dispatch_key_included(kGateKey);
}

}  // namespace spillway::swap
