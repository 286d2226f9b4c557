#include "runtime/train_options.h"

#include <charconv>

#include "core/disk_tier.h"
#include "core/error.h"

namespace spillway {

BudgetRequest BudgetRequest::parse(std::string_view text) {
  if (text == "none") return {};
  BudgetRequest request;
  if (text.ends_with('%')) {
    std::string_view number = text.substr(0, text.size() - 1);
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), request.percent);
    if (error != std::errc() || end != number.data() + number.size() ||
        !(request.percent > 0 && request.percent <= 1000))
      throw BadRequest(str("cannot read '", text,
                           "' as a budget; write a percentage of the unconstrained peak such as "
                           "50%, a size such as 600MiB, or none"));
    request.kind = Kind::percent;
    return request;
  }
  request.kind = Kind::bytes;
  request.bytes = parse_bytes(text);
  if (request.bytes <= 0)
    throw BadRequest(str("a budget of '", text, "' is no budget; write at least 1 byte, or none"));
  return request;
}

void TrainOptions::validate() const {
  auto require = [](bool good, std::string_view field, const auto& value, std::string_view allowed) {
    if (!good) throw BadRequest(str("TrainOptions: ", field, " is ", value, "; allowed is ", allowed));
  };
  require(batch >= 1, "batch", batch, "1 or more");
  require(filters >= 1, "filters", filters, "1 or more");
  require(epochs >= 0, "epochs", epochs, "0 or more");
  require(epochs > 0 || steps >= 1, "steps", steps, "1 or more");
  require(optimizer == "adam" || optimizer == "sgd", "optimizer", optimizer, "adam or sgd");
  require(lr > 0, "lr", lr, "above 0");
  require(momentum >= 0 && momentum < 1, "momentum", momentum, "0 up to, not including, 1");
  require(weight_decay >= 0, "weight_decay", weight_decay, "0 or more");
  const bool host_given = host_budget.kind == BudgetRequest::Kind::bytes;
  require(disk.empty() || !host_given || host_budget.bytes >= DiskTier::kMinHostBytes, "host_budget", host_budget.bytes,
          str(DiskTier::kMinHostBytes, " or more, with a disk"));
  require(validate_every >= 0, "validate_every", validate_every, "0 or more");
  if (use_kfac) kfac.validate();
}

}  // namespace spillway
