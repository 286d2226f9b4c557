/// Sentences of a made-up language with words to guess: the same for the same seed and index.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"

namespace spillway {

/// The first words of BERT's uncased vocabulary that mean something of their own; the others start after them.
inline constexpr int64_t kClassToken = 101, kSeparatorToken = 102, kMaskToken = 103, kFirstWord = 104;

/// A sentence counts through the words in steps of its own, [CLS] before it and [SEP] behind it; so its neighbours give
/// a hidden word away. Of every sentence the same number of words (15 %, at least one) is to be guessed; of those,
/// 80 % show [MASK], 10 % another word, 10 % themselves (Devlin et al. 2019, §3.1).
/// Batches: input [1, L] int64, target [1, 2, K] int64: the places to guess, ascending, and the words that were there.
class SyntheticTokens : public Dataset {
 public:
  struct Options {
    int64_t length = 128;        ///< with [CLS] and [SEP]; ≥ 3
    int64_t vocabulary = 30522;  ///< > kFirstWord
    int64_t cases = 256;         ///< ≥ 1
    uint64_t seed = 0;
  };
  /// Throws BadRequest naming the bad option.
  explicit SyntheticTokens(const Options& options);

  int64_t size() const override { return options_.cases; }
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;
  /// How many words of a sentence are to be guessed.
  int64_t hidden_words() const;

 private:
  Options options_;
  int64_t words_;  // that sentences are made of
};

}  // namespace spillway
