/// Published figures beside their predictions.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::runtime {

/// One published number and what is predicted for it.
struct PublishedFigure {
  std::string what = {};
  std::string unit = {};
  double published = 0;
  std::optional<double> predicted = {};  ///< missing where nothing here can predict it
  /// Returns the prediction as a share above the published number; nothing without a prediction.
  std::optional<double> deviation() const;
};

/// A table or a picture of a paper.
struct Reproduction {
  std::string name = {};
  std::string source = {};  ///< authors, year, place in the paper
  std::vector<PublishedFigure> figures = {};
  std::vector<std::string> assumptions = {};  ///< inputs that the paper does not tell, and what differs
};

/// Returns the names that reproduce() takes, in their order.
std::vector<std::string> reproductions();

/// Predicts the figures of a paper. No input is fitted to them. Nothing runs but dry steps. Throws BadRequest naming
/// the names that there are.
Reproduction reproduce(std::string_view name);

}  // namespace spillway::runtime
