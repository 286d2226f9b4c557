/// Ways to carry out collectives of vectors that are on cards.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "ddl/torch/operators.h"
#include "tools/bench/allreduce/variant.h"

namespace spillway::tools {

/// How such vectors are reduced: `NCCL 2.28.9, by levels 4x2`; `staged on the host: …`. Collective. Throws CommError.
std::string decision(ddl::Cards& cards, c10::Device card, const Problem& problem);

/// On `card`, one of `cards`, with whose ranks `comm`'s are the same. Ways of an allreduce: `levels`, the operator
/// allreduce_. Where that goes by the cards' network also `staged`, the same through the host, and where the network
/// itself reduces the like (no averages, no 16-bit floats) `nccl`, its own allreduce of all ranks at once. Other
/// collectives: their operator, `levels` or, of a broadcast, `tree`. Only `nccl` knows an out of place: the others copy
/// the input first. Collective. Throws CommError.
std::unique_ptr<Vectors> vectors_on_card(const ddl::Comm& comm, ddl::Cards& cards, c10::Device card,
                                         const Problem& problem);

}  // namespace spillway::tools
