/// Checks of requests that must be refused, and of the refusals' messages.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace spillway::testing {

/// Returns the message with which `body` is refused, or an empty text when it is not.
inline std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "";
}

inline void expect_refusal(const std::function<void()>& body, const std::vector<std::string>& parts) {
  const std::string message = refusal(body);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

}  // namespace spillway::testing
