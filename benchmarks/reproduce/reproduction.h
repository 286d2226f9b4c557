/// A published table beside its prediction.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace spillway::runtime {

/// One number of a table or a picture.
struct PublishedFigure {
  std::string what = {};
  std::string unit = {};
  std::optional<double> published = {};  ///< missing where the paper tells no number, as in a picture
  std::optional<double> predicted = {};  ///< missing where nothing here can predict it
  /// Returns the prediction as a share above the published number; nothing where one of them is missing.
  std::optional<double> deviation() const {
    return published && predicted ? std::optional(*predicted / *published - 1) : std::nullopt;
  }
};

/// A table or a picture of a paper.
struct Reproduction {
  std::string name = {};
  std::string source = {};  ///< authors, year, place in the paper
  std::vector<PublishedFigure> figures = {};
  std::vector<std::string> assumptions = {};  ///< inputs that the paper does not tell, and what differs
};

}  // namespace spillway::runtime
