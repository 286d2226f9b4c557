#include "ddl/allreduce/combine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

// Marks a function that is compiled for several widths of vectors. The first call takes the processor's own width; the
// bits are the same. Builds with sanitizers do without it, because sanitizers cannot be asked so early.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SPILLWAY_FOR_EVERY_CPU __attribute__((target_clones("default", "avx2"), flatten))
#else
#define SPILLWAY_FOR_EVERY_CPU
#endif

namespace spillway::ddl {
namespace {

/// The elements of a block, few enough to stay in the first-level cache beside one block of a term.
constexpr int64_t kBlock = 1024;

// Conversions without branches, which compilers turn into vector instructions.
struct BFloat16 {
  uint16_t bits;
  static float widen(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
  static BFloat16 round(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // ties to even
    return {static_cast<uint16_t>(x != x ? 0x7fc0 : nearest)};
  }
};

struct Float16 {
  uint16_t bits;
  static float widen(Float16 x) {
    const uint32_t magnitude = uint32_t{x.bits} << 13 & 0x0fffe000;
    // Exponents differ by 112; the product is exact, for subnormal numbers, too.
    const auto value = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t unbounded = magnitude >= 0x0f800000 ? 0x7f800000 : 0;  // infinity and NaN
    return std::bit_cast<float>(value | unbounded | (uint32_t{x.bits} << 16 & 0x80000000));
  }
  static Float16 round(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112 << 10);
    // 0.5 has the unit in the last place that subnormal numbers have.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    uint32_t result = magnitude < 0x38800000 ? subnormal : normal;  // 2^-14
    result = magnitude >= 0x477ff000 ? 0x7c00 : result;             // 65520 and more
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return {static_cast<uint16_t>(result | (bits >> 16 & 0x8000))};
  }
};

template <class T>
struct Same {
  static T widen(T x) { return x; }
  static T round(T x) { return x; }
};

template <class T>
using Conversion = std::conditional_t<std::is_arithmetic_v<T>, Same<T>, T>;
template <class T>
using Partial = decltype(Conversion<T>::widen(T{}));

struct Nothing {
  template <class P>
  static P of(P a, P) {
    return a;
  }
};
struct Sum {
  template <class P>
  static P of(P a, P b) {
    if constexpr (std::is_integral_v<P>) {
      using Unsigned = std::make_unsigned_t<P>;
      return static_cast<P>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
struct Maximum {
  template <class P>
  static P of(P a, P b) {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class P>
  static P of(P a, P b) {
    return a < b || a != a ? a : b;
  }
};

/// A term's elements as partial results.
template <class T, bool partial>
struct Elements {
  using Stored = std::conditional_t<partial, Partial<T>, T>;
  const Stored* data;
  Partial<T> operator[](int64_t k) const { return Conversion<Stored>::widen(data[k]); }
};

template <class T, class Visit>
void with_elements(Term term, int64_t begin, const Visit& visit) {
  if (term.partial)
    visit(Elements<T, true>{static_cast<const Partial<T>*>(term.data) + begin});
  else
    visit(Elements<T, false>{static_cast<const T*>(term.data) + begin});
}

/// Combines two terms. Either may lie where the result goes, element by element, which the compiler would not expect.
template <class Operation, class P, class One, class Other>
void combine_two(P* to, One one, Other other, int64_t size) {
#pragma GCC ivdep
  for (int64_t k = 0; k < size; ++k) to[k] = Operation::of(one[k], other[k]);
}

template <class T, class Operation>
void combine_all(void* target, std::span<const Term> terms, int64_t count) {
  std::array<Partial<T>, kBlock> block;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const auto result_of = [&](size_t term) {
      return term + 1 == terms.size() ? static_cast<Partial<T>*>(target) + begin : block.data();
    };
    with_elements<T>(terms[0], begin, [&](auto first) {
      if (terms.size() == 1) return combine_two<Nothing>(result_of(0), first, first, size);
      with_elements<T>(terms[1], begin,
                       [&](auto second) { combine_two<Operation>(result_of(1), first, second, size); });
    });
    for (size_t i = 2; i < terms.size(); ++i)
      with_elements<T>(terms[i], begin, [&](auto next) {
        combine_two<Operation>(result_of(i), Elements<T, true>{block.data()}, next, size);
      });
  }
}

template <class T>
void finish_all(void* output, const void* partial, int64_t count, int64_t ranks) {
  T* to = static_cast<T*>(output);
  const auto* from = static_cast<const Partial<T>*>(partial);
  const auto divisor = static_cast<Partial<T>>(ranks);
  // Multiplying by the inverse of a power of two gives the same bits, several times faster.
  if (std::is_floating_point_v<Partial<T>> && std::has_single_bit(static_cast<uint64_t>(ranks))) {
    const auto inverse = 1 / divisor;
    for (int64_t k = 0; k < count; ++k) to[k] = Conversion<T>::round(from[k] * inverse);
  } else {
    for (int64_t k = 0; k < count; ++k) to[k] = Conversion<T>::round(from[k] / divisor);
  }
}

/// Calls `visit` with a value of the element's type.
template <class Visit>
void with_type(Element element, const Visit& visit) {
  switch (element) {
    case Element::float32:
      return visit(float{});
    case Element::float64:
      return visit(double{});
    case Element::float16:
      return visit(Float16{});
    case Element::bfloat16:
      return visit(BFloat16{});
    case Element::int32:
      return visit(int32_t{});
    case Element::int64:
      return visit(int64_t{});
  }
}

}  // namespace

SPILLWAY_FOR_EVERY_CPU
void combine(Element element, Reduction reduction, void* target, std::span<const Term> terms, int64_t count) {
  with_type(element, [&](auto value) {
    using T = decltype(value);
    if (reduction == Reduction::maximum)
      combine_all<T, Maximum>(target, terms, count);
    else if (reduction == Reduction::minimum)
      combine_all<T, Minimum>(target, terms, count);
    else
      combine_all<T, Sum>(target, terms, count);
  });
}

SPILLWAY_FOR_EVERY_CPU
void finish(Element element, Reduction reduction, void* output, const void* partial, int64_t count, int64_t ranks) {
  const int64_t divisor = reduction == Reduction::average ? ranks : 1;
  if (divisor == 1 && output == partial) return;
  with_type(element, [&](auto value) { finish_all<decltype(value)>(output, partial, count, divisor); });
}

}  // namespace spillway::ddl
