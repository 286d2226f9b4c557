/// The arithmetic of a reduction, element by element.
#pragma once
#include <cstdint>
#include <span>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// One of the vectors that are combined: a rank's own elements or, when `partial`, the partial result of several ranks'
/// elements.
struct Term {
  const void* data = nullptr;
  bool partial = false;
};

/// Computes target[k] = ((terms[0][k] ∘ terms[1][k]) ∘ terms[2][k]) ∘ … for k < count. Here ∘ is the sum, maximum or
/// minimum, in the type of partial results. `target` may be one of the partial terms, otherwise they do not overlap.
/// Any alignment of an element. One pass over memory.
void combine(Element element, Reduction reduction, void* target, std::span<const Term> terms, int64_t count);

/// Computes output[k] = partial[k], divided by `ranks` for an average, rounded to the element's type. `output` may be
/// `partial` where the types are the same.
void finish(Element element, Reduction reduction, void* output, const void* partial, int64_t count, int64_t ranks);

}  // namespace spillway::ddl
