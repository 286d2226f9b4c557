#include "runtime/data/synthetic_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/data/generator.h"

namespace spillway::runtime {
namespace {

/// The most words of the language: so few that a short training meets each of them often.
constexpr int64_t kMaxLanguage = 256;
constexpr int64_t kMaxStride = 4;

int64_t hidden_in(int64_t length) {
  return std::max<int64_t>(1, (length - 2) * 15 / 100);
}

}  // namespace

SyntheticTokens::SyntheticTokens(const Options& options)
    : SyntheticData("sentence", options.cases,
                    (options.length + 2 * hidden_in(options.length)) * static_cast<int64_t>(sizeof(int64_t))),
      options_(options) {
  check_at_least(3, "length", options.length);
  check_at_least(kFirstWord + 1, "vocabulary", options.vocabulary);
  words_ = std::min(kMaxLanguage, options.vocabulary - kFirstWord);
}

int64_t SyntheticTokens::hidden_words() const {
  return hidden_in(options_.length);
}

Batch SyntheticTokens::make(int64_t index) const {
  at::Generator generator = make_generator(options_.seed, index);
  auto below = [&](int64_t end, int64_t count) { return at::randint(end, {count}, generator, at::kLong); };
  const int64_t inner = options_.length - 2, hidden = hidden_words();

  const at::Tensor words = (below(words_, 1) + (below(kMaxStride, 1) + 1) * at::arange(inner)).remainder(words_);
  const at::Tensor sentence =
      at::cat({at::full({1}, kClassToken, at::kLong), words + kFirstWord, at::full({1}, kSeparatorToken, at::kLong)});
  const at::Tensor places = std::get<0>(at::randperm(inner, generator, at::kLong).narrow(0, 0, hidden).sort()) + 1;
  const at::Tensor truth = sentence.index_select(0, places);

  const at::Tensor dice = below(10, hidden);
  const at::Tensor other = below(words_, hidden) + kFirstWord;
  const at::Tensor mask = at::full({hidden}, kMaskToken, at::kLong);
  const at::Tensor shown = at::where(dice.lt(8), mask, at::where(dice.eq(8), other, truth));
  return {sentence.index_copy(0, places, shown).unsqueeze(0), at::stack({places, truth}).unsqueeze(0)};
}

}  // namespace spillway::runtime
