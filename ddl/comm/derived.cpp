// Communicators that are made from another one.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {
namespace {

/// Throws BadRequest unless the members are ascending ranks, with this one among them.
void check(const std::vector<int>& members, int rank, int size) {
  const bool ascends = std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  const bool has_this = std::find(members.begin(), members.end(), rank) != members.end();
  if (ascends && has_this && members.front() >= 0 && members.back() < size) return;
  std::string text;
  for (int member : members) text += str(" ", member);
  throw BadRequest(str("[ddl] a group has the ranks", text.empty() ? " (none)" : text,
                       "; allowed: ascending ranks from 0 to ", size - 1, ", with this rank, ", rank, ", among them"));
}

}  // namespace

std::shared_ptr<Communicator> Communicator::derived(const std::function<std::unique_ptr<Transport>()>& make,
                                                    CommOptions options, std::vector<int> world_ranks,
                                                    std::string_view name) {
  std::unique_ptr<Transport> wire;
  const auto made = [&] {
    if (!wire) wire = make();
    return wire->ready();
  };
  wait_until(made, {.collective = name, .stage = 1});
  return std::shared_ptr<Communicator>(
      new Communicator(std::move(wire), std::move(options), board_, std::move(world_ranks)));
}

std::shared_ptr<Communicator> Communicator::duplicate() {
  agree(*this, {Operation::duplicate});
  return derived([&] { return transport_->duplicate(); }, options(), world_ranks_, "duplicate");
}

std::shared_ptr<Communicator> Communicator::group(const std::vector<int>& members) {
  require_alive();
  check(members, rank_, size());
  std::vector<int> world_ranks;
  uint64_t signature = kHashSeed;
  for (int member : members) {
    world_ranks.push_back(world_rank(member));
    signature = hash_in(signature, member);
  }
  const auto own = std::find(members.begin(), members.end(), rank_) - members.begin();
  // Once all members are here, none of them waits for another one's other calls.
  Agreement(*this, {.operation = Operation::group, .signature = signature}, members, static_cast<int>(own)).conclude();
  CommOptions options{.deadline = deadline()};
  for (const std::vector<int>& labels : levels_.labels()) {
    auto& of_members = options.levels.emplace_back();
    for (int member : members) of_members.push_back(labels[member]);
  }
  return derived([&] { return transport_->group(members); }, std::move(options), std::move(world_ranks), "group");
}

}  // namespace spillway::ddl
