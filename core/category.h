/// The categories that bytes are counted under, and the tag that selects a category when storage is allocated.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace spillway {

/// The purpose of counted bytes.
enum class Category : uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  factors,
  eigenbases,
  workspace,  ///< allocated inside an operator and not (yet) one of its outputs
  staging,    ///< buffers of collectives and copies
  other,
};
/// The number of categories.
inline constexpr size_t kCategoryCount = 9;

/// Bytes of each category, in the order of Category. All are 0 when value-initialized.
struct BytesByCategory : std::array<int64_t, kCategoryCount> {
  using array::operator[];
  int64_t& operator[](Category category) { return (*this)[static_cast<size_t>(category)]; }
  int64_t operator[](Category category) const { return (*this)[static_cast<size_t>(category)]; }
};

/// Returns the name: `weights`.
std::string_view name(Category category);

/// Counts storage that this thread allocates during the scope under `category`. Scopes nest, and the innermost wins.
/// The tag is thread-local, because LibTorch calls allocators without telling them the purpose.
class CategoryScope {
 public:
  explicit CategoryScope(Category category);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;
  /// Returns the innermost scope's category on this thread; `fallback` outside every scope.
  static Category current(Category fallback = Category::other);

 private:
  int previous_;
};

/// Counts storage that this thread allocates during the scope as workspace of the operator `name`. It stays workspace
/// until the gate finds it among the outputs. An OutOfBudget raised on this thread names the operator. `name` must
/// outlive the scope.
class OperatorScope {
 public:
  explicit OperatorScope(std::string_view name);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;
  /// Returns the name of the innermost scope's operator on this thread; empty outside every operator.
  static std::string_view current();

 private:
  std::string_view previous_;
};

/// Returns the category that storage is charged to when this thread allocates it now.
Category birth_category();

}  // namespace spillway
