#include "core/value_names.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

enum class Fruit { apple, pear, fig };
constexpr auto kFruits = value_names<Fruit>({{Fruit::apple, "apple"}, {Fruit::pear, "pear"}, {Fruit::fig, "fig"}});

TEST(ValueNamesTest, ReadsTheNamesThatItWrites) {
  for (const Fruit fruit : {Fruit::apple, Fruit::pear, Fruit::fig})
    EXPECT_EQ(kFruits.parse("fruit", kFruits.name(fruit)), fruit);
  EXPECT_EQ(kFruits.find("figs"), std::nullopt);
  EXPECT_EQ(kFruits.list(), "apple, pear, fig");
}

TEST(ValueNamesTest, RefusesAnotherNameWithAllThatItKnows) {
  try {
    kFruits.parse("fruit", "");
    FAIL() << "accepted an empty name";
  } catch (const BadRequest& refusal) {
    EXPECT_STREQ(refusal.what(), "fruit is ''; allowed is apple, pear or fig");
  }
}

}  // namespace
}  // namespace spillway
