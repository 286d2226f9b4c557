/// What a byte is held for, and the tag that says so when storage is born.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace spillway {

enum class Category : uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  factors,
  eigenbases,
  workspace,  ///< born inside an operator and not (yet) one of its outputs
  staging,    ///< buffers of collectives and copies
  other,
};
inline constexpr size_t kCategoryCount = 9;
using BytesByCategory = std::array<int64_t, kCategoryCount>;

std::string_view name(Category category);

/// Storage born on this thread while the scope lives is counted under `category`; scopes nest, the innermost wins.
/// The tag is thread-local: allocators are called by LibTorch with no other way to learn why.
class CategoryScope {
 public:
  explicit CategoryScope(Category category);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;
  /// The innermost scope's category on this thread; `fallback` outside every scope.
  static Category current(Category fallback = Category::other);

 private:
  int previous_;
};

/// While it lives, storage born on this thread is workspace of the operator `name` (until the gate finds it among the
/// outputs), and an OutOfBudget raised on this thread names it. `name` must outlive the scope.
class OperatorScope {
 public:
  explicit OperatorScope(std::string_view name);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;
  /// Empty outside every operator.
  static std::string_view current();

 private:
  std::string_view previous_;
};

/// The category that storage born now, on this thread, is charged to.
Category birth_category();

}  // namespace spillway
