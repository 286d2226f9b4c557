#include "kfac/exchange.h"

#include <ATen/ATen.h>

#include <utility>

namespace spillway::kfac {

Exchange::Exchange(ddl::Comm comm) : comm_(std::move(comm)) {
  TORCH_CHECK(!comm_, "[kfac.exchange] only a single process (a null Comm) is served so far");
}

void Exchange::average_(at::TensorList) const {}
void Exchange::broadcast_(at::TensorList, int64_t, at::IntArrayRef) const {}

}  // namespace spillway::kfac
