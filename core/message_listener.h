/// A listener to messages between ranks that travel beside a step's operators.
#pragma once
#include <cstdint>

namespace spillway {

/// Hears of each message when it is handed over and when its result is needed. Called on the thread of the operators.
class MessageListener {
 public:
  virtual ~MessageListener() = default;
  /// A message was handed over that takes the links `seconds`. Returns its number.
  virtual int64_t sent(double seconds) = 0;
  /// The next operator needs the result of message `number`.
  virtual void awaited(int64_t number) = 0;
};

}  // namespace spillway
