#include "swap/gate/session_scope.h"

#include <utility>

#include "core/memory/fork.h"

namespace spillway::swap {
namespace {

/// The kind under which LibTorch's thread-local debug information holds a Session; nothing on a server uses this kind.
constexpr auto kInfoKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

struct SessionInfo final : c10::DebugInfoBase {
  explicit SessionInfo(SessionScope given) : scope(std::move(given)) {}
  const SessionScope scope;
};

}  // namespace

const SessionScope* SessionScope::current() {
  auto* info = static_cast<SessionInfo*>(c10::ThreadLocalDebugInfo::get(kInfoKind));
  return info && !info->scope.alive.expired() && !forked_while_paging() ? &info->scope : nullptr;
}

GateGuards::GateGuards(SessionScope scope)
    : session(kInfoKind, std::make_shared<SessionInfo>(std::move(scope))), key(kGateKey) {}

}  // namespace spillway::swap
