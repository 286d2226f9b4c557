/// The mode of K-FAC's own operators on a user's tensors.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace spillway::kfac {

/// While it lives, operators of this thread make no graph, pass autograd's layers of the dispatcher by, and compute in
/// the types of their tensors, also where the user's code has autocast on. Version counters stay as they are.
struct OwnOperators {
  at::NoGradGuard no_grad = {};
  at::AutoDispatchBelowADInplaceOrView no_autograd = {};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace spillway::kfac
