/// Synthetic sentences with words to guess. The same seed and index give the same sentence.
#pragma once
#include <cstdint>

#include "runtime/data/synthetic.h"

namespace spillway::runtime {

/// The special tokens of BERT's uncased vocabulary that are used here; ordinary words start at kFirstWord.
inline constexpr int64_t kClassToken = 101, kSeparatorToken = 102, kMaskToken = 103, kFirstWord = 104;

/// Sentences of a made-up language. A sentence counts through the words in steps of its own, with [CLS] before it and
/// [SEP] behind it. A hidden word can therefore be inferred from its neighbors. Every sentence has the same number of
/// words to guess (15 %, at least one). Of those, 80 % show [MASK], 10 % another word, 10 % themselves (Devlin et al.
/// 2019, §3.1).
/// Batches: input [1, L] int64, target [1, 2, K] int64: the places to guess, ascending, and the words that were there.
class SyntheticTokens final : public SyntheticData {
 public:
  struct Options {
    int64_t length = 128;        ///< tokens, with [CLS] and [SEP]; ≥ 3
    int64_t vocabulary = 30522;  ///< > kFirstWord
    int64_t cases = 256;         ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticTokens(const Options& options);

  /// Returns the number of words to guess in a sentence.
  int64_t hidden_words() const;

 private:
  Batch make(int64_t index) const override;

  const Options options_;
  int64_t words_;  // words that sentences are made of
};

}  // namespace spillway::runtime
