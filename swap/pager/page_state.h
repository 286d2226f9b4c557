/// The places where a page's bytes can be, and the ways between them.
#pragma once
#include <cstdint>
#include <string_view>

namespace spillway::swap {

/// The place of a page's bytes. PageTable::enter() refuses every change that is not in this table:
///
///     from            to              when
///     (new)           resident_dirty  a storage is registered
///     (new)           absent          a result is born in the host tier
///     resident_dirty  paging_out      a copy to the host begins
///     resident_dirty  discarded       the bytes are dropped, because a recipe makes them again
///     resident_clean  resident_dirty  a user may write them, or another page needs the host copy's room
///     resident_clean  absent          the device bytes are freed
///     resident_clean  discarded       the bytes are dropped, because a recipe makes them again
///     paging_out      resident_clean  the copy is done
///     paging_out      resident_dirty  the copy failed
///     paging_out      absent          the copy of managed memory is done: it takes the bytes away
///     absent          paging_in       a copy to the device begins
///     paging_in       resident_clean  the copy is done
///     paging_in       resident_dirty  the copy of managed memory is done
///     paging_in       absent          the copy failed, or could not begin
///     discarded       replaying       the recipe runs
///     replaying       resident_dirty  it made the bytes
///     replaying       discarded       it failed
///     any             destroyed       the storage died, or is no page any more
enum class PageState : uint8_t {
  resident_dirty,  ///< on the device alone
  resident_clean,  ///< on the device, and the host copy is equal
  paging_out,      ///< on the device; a copy to the host is under way, or done and not yet noticed
  absent,          ///< in the host tier; managed memory: on the host, at the same address
  paging_in,       ///< in the host tier; a copy to the device is under way, or done and not yet noticed
  discarded,       ///< nowhere; the recipe can make them
  replaying,       ///< nowhere; the recipe runs
  destroyed        ///< nowhere; the record is kept until its leases end
};
std::string_view name(PageState state) noexcept;
bool may_follow(PageState from, PageState to) noexcept;
/// True when the bytes are on the device, though perhaps leaving.
constexpr bool is_on_device(PageState state) noexcept {
  return state <= PageState::paging_out;
}

}  // namespace spillway::swap
