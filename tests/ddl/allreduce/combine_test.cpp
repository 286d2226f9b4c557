#include "ddl/allreduce/combine.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace spillway::ddl {
namespace {

std::vector<float> values(int64_t count, float scale) {
  std::vector<float> result(count);
  for (int64_t k = 0; k < count; ++k) result[k] = scale / static_cast<float>(k + 1);
  return result;
}

std::vector<float> widened(Element element, const std::vector<uint16_t>& bits) {
  std::vector<float> result(bits.size());
  const Term term{bits.data(), false};
  combine(element, Reduction::sum, result.data(), {&term, 1}, static_cast<int64_t>(bits.size()));
  return result;
}

std::vector<uint16_t> rounded(Element element, const std::vector<float>& floats) {
  std::vector<uint16_t> result(floats.size());
  finish(element, Reduction::sum, result.data(), floats.data(), static_cast<int64_t>(floats.size()), 1);
  return result;
}

std::vector<uint16_t> every_bit_pattern() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

/// Returns the value of a number with so many bits of exponent and fraction, by the definition of IEEE 754.
double defined(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const double fraction = (bits & ((1 << fraction_bits) - 1)) / std::exp2(fraction_bits), sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction > 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * fraction * std::exp2(1 - bias) : sign * (1 + fraction) * std::exp2(exponent - bias);
}

}  // namespace

TEST(CombineTest, TheTargetMayBeAnyPartialTermAtAnyAddressOfAnElement) {
  for (const size_t count_of_terms : {size_t{1}, size_t{2}, size_t{3}, size_t{5}})
    for (size_t place = 0; place <= count_of_terms; ++place)  // the last place: a separate target
      for (const int64_t shift : {0, 1, 3})
        for (const int64_t count : {1, 7, 1024, 2051}) {
          std::vector<std::vector<float>> data;
          std::vector<Term> terms;
          for (size_t i = 0; i < count_of_terms; ++i) {
            data.push_back(values(count + shift, static_cast<float>(1 + 10 * i)));
            terms.push_back({data[i].data() + shift, i == place || i % 2 == 0});
          }
          std::vector<float> expected = data[0], apart(static_cast<size_t>(count + shift));
          for (size_t i = 1; i < count_of_terms; ++i)
            for (size_t k = 0; k < expected.size(); ++k) expected[k] += data[i][k];
          auto& target = place < count_of_terms ? data[place] : apart;
          combine(Element::float32, Reduction::sum, target.data() + shift, terms, count);
          EXPECT_TRUE(std::equal(target.begin() + shift, target.end(), expected.begin() + shift))
              << count_of_terms << " terms, into " << place << ", from " << shift << ", " << count;
        }
}

TEST(CombineTest, AddsFromTheLeftAndDividesOnce) {
  for (const int64_t count : {0, 1, 3, 1023, 1024, 1025, 5000}) {
    const auto a = values(count, 1.0f), b = values(count, 1e7f), c = values(count, -3.0f);
    const std::array<Term, 3> terms{Term{a.data(), false}, {b.data(), true}, {c.data(), false}};
    for (const int64_t ranks : {1, 2, 3, 7, 64}) {
      std::vector<float> sum(count), average(count);
      combine(Element::float32, Reduction::average, sum.data(), terms, count);
      finish(Element::float32, Reduction::average, average.data(), sum.data(), count, ranks);
      for (int64_t k = 0; k < count; ++k) EXPECT_EQ(average[k], ((a[k] + b[k]) + c[k]) / static_cast<float>(ranks));
    }
  }
}

TEST(CombineTest, SixteenBitFloatsAreWhatTheirDefinitionSays) {
  const auto all = every_bit_pattern();
  for (const auto& [element, exponent_bits, fraction_bits] :
       {std::tuple{Element::float16, 5, 10}, {Element::bfloat16, 8, 7}}) {
    const auto wide = widened(element, all);
    const auto back = rounded(element, wide);
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = defined(all[i], exponent_bits, fraction_bits);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide[i])) << i;
        EXPECT_TRUE(std::isnan(widened(element, {back[i]})[0])) << i;
      } else {
        EXPECT_EQ(wide[i], expected) << i;
        EXPECT_EQ(back[i], all[i]) << "what has come back as itself";
      }
    }
  }
}

TEST(CombineTest, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(7);
  for (const auto& [element, exponent_bits, fraction_bits, largest] :
       {std::tuple{Element::float16, 5, 10, uint16_t{0x7bff}}, {Element::bfloat16, 8, 7, uint16_t{0x7f7f}}}) {
    std::vector<float> floats;
    for (int i = 0; i < 20000; ++i) {
      // The inputs are any floats, the midpoints between neighboring 16-bit values, and the floats next to a midpoint.
      floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
      const auto low = static_cast<uint16_t>(random() % largest);
      const auto middle = static_cast<float>((defined(low, exponent_bits, fraction_bits) +
                                              defined(static_cast<uint16_t>(low + 1), exponent_bits, fraction_bits)) /
                                             2);
      floats.insert(floats.end(), {middle, -middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f)});
    }
    const auto bits = rounded(element, floats);
    const double ulp_above = defined(largest, exponent_bits, fraction_bits) -
                             defined(static_cast<uint16_t>(largest - 1), exponent_bits, fraction_bits);
    const double overflow = defined(largest, exponent_bits, fraction_bits) + ulp_above / 2;
    for (size_t i = 0; i < floats.size(); ++i) {
      const double x = floats[i], r = defined(bits[i], exponent_bits, fraction_bits);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(r));
      } else if (std::abs(x) >= overflow) {
        EXPECT_EQ(r, std::copysign(std::numeric_limits<double>::infinity(), x)) << x;
      } else {
        EXPECT_EQ(std::signbit(r), std::signbit(x));
        const auto magnitude = static_cast<uint16_t>(bits[i] & 0x7fff);
        for (const int other : {magnitude - 1, magnitude + 1}) {
          if (other < 0 || other > largest) continue;
          const double distance =
              std::abs(defined(static_cast<uint16_t>(other), exponent_bits, fraction_bits) - std::abs(x));
          const double own = std::abs(std::abs(r) - std::abs(x));
          EXPECT_TRUE(own < distance || (own == distance && magnitude % 2 == 0)) << x << " became " << r;
        }
      }
    }
  }
}

TEST(CombineTest, SixteenBitFloatsAreSummedInFloat32) {
  // Three terms 2048 + 1 + 1 give 2048 where every sum is rounded to float16.
  const auto bits = rounded(Element::float16, {2048.0f, 1.0f, 1.0f});
  const std::array<Term, 3> terms{Term{&bits[0], false}, {&bits[1], false}, {&bits[2], false}};
  float sum = 0;
  combine(Element::float16, Reduction::sum, &sum, terms, 1);
  EXPECT_EQ(sum, 2050);
}

TEST(CombineTest, IntegersWrapAroundAndAverageTowardsZero) {
  const std::array<int32_t, 3> x{std::numeric_limits<int32_t>::max(), 2, -7};
  const std::array<Term, 2> overflowing{Term{&x[0], false}, {&x[1], true}};
  int32_t sum = 0;
  combine(Element::int32, Reduction::sum, &sum, overflowing, 1);
  EXPECT_EQ(sum, std::numeric_limits<int32_t>::min() + 1);
  int32_t average = 0;
  finish(Element::int32, Reduction::average, &average, &x[2], 1, 2);
  EXPECT_EQ(average, -3);
}

TEST(CombineTest, ANanIsTheMaximumAndTheMinimumWhereverItStands) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& x : {std::array{1.0, nan, 2.0}, {nan, 1.0, 2.0}, {1.0, 2.0, nan}})
    for (const auto reduction : {Reduction::maximum, Reduction::minimum}) {
      const std::array<Term, 3> terms{Term{&x[0], false}, {&x[1], false}, {&x[2], false}};
      double result = 0;
      combine(Element::float64, reduction, &result, terms, 1);
      EXPECT_TRUE(std::isnan(result));
    }
}

}  // namespace spillway::ddl
