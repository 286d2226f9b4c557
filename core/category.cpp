#include "core/category.h"

namespace spillway {
namespace {

constexpr std::array<std::string_view, kCategoryCount> kNames{
    "weights", "gradients", "optimizer", "activations", "factors", "eigenbases", "workspace", "staging", "other"};

// The thread's tags are the only thread-local state of core.
thread_local int category_tag = -1;
thread_local std::string_view operator_tag;

}  // namespace

std::string_view name(Category category) {
  return kNames[static_cast<size_t>(category)];
}

CategoryScope::CategoryScope(Category category) : previous_(category_tag) {
  category_tag = static_cast<int>(category);
}
CategoryScope::~CategoryScope() {
  category_tag = previous_;
}
Category CategoryScope::current(Category fallback) {
  return category_tag < 0 ? fallback : static_cast<Category>(category_tag);
}

OperatorScope::OperatorScope(std::string_view name) : previous_(operator_tag) {
  operator_tag = name;
}
OperatorScope::~OperatorScope() {
  operator_tag = previous_;
}
std::string_view OperatorScope::current() {
  return operator_tag;
}

Category birth_category() {
  return operator_tag.empty() ? CategoryScope::current() : Category::workspace;
}

}  // namespace spillway
