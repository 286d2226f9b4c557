#!/usr/bin/env bash
# Ranks on several emulated hosts find each other, see which of them share a host, and sum right.
# usage: emulated_hosts_test.sh EMULATED_HOSTS SPILLWAY; 77: this machine does not allow it
set -u
hosts=$1 program=$2
"$hosts" usable || { echo "skipped: needs root and iproute2"; exit 77; }
trap '"$hosts" down' EXIT
"$hosts" up 2 1gbit || { echo "skipped: no network namespaces or no shaping here"; exit 77; }

fail() { echo "FAILED: $*"; exit 1; }
check() { # SHAPE [dealt] EXPECTED
  local expected=${*: -1} output
  output=$(timeout 100 "$hosts" run "${@:1:$#-1}" "$program" bench allreduce --sizes 4KiB,200KiB --repeats 1 2>&1) ||
    fail "$* ended with $?: $output"
  grep -q "ranks ($expected)" <<< "$output" || fail "$* is not seen as $expected: $output"
  echo "passed: $*"
}
check 2x2 2x2
check 2x2 dealt 2x2
check 2+1 2+1
output=$(timeout 100 "$hosts" run 2x2 "$program" topo --measure --levels discover 2>&1) || fail "topo ended with $?: $output"
for expected in '^spwy0, spwy1: ' '^levels 2x2$' '├─ host spwy0: ranks 0-1$' '└─ host spwy1: ranks 2-3$' \
  '^level 1, between ranks: ' '^level 2, between hosts: ' '^latency between hosts, us$'; do
  grep -q -- "$expected" <<< "$output" || fail "topo draws no '$expected': $output"
done
echo "passed: topo"
shapes=$(dirname "$hosts")/../benchmarks/allreduce_shapes
table=$(timeout 200 "$shapes" --program "$program" --shapes "2+1,2x1 dealt" --sizes 4KiB --launches 1 --repeats 1) ||
  fail "allreduce_shapes ended with $?: $table"
[[ $(grep -cE '^\| (2\+1|2×1 dealt) \| 4 KiB \|( [0-9.]+ \|){4} [0-9]+ % \| [a-z ]+ \|$' <<< "$table") == 2 ]] || fail "$table"
grep -qE '^model: median error [0-9.]+ % over 2 shapes and sizes' <<< "$table" || fail "$table"
[[ $(ip netns list) != *spwy* ]] || fail "allreduce_shapes leaves hosts behind"
echo "passed: a table over shapes"
"$hosts" run 2y2 true 2> /dev/null && fail "2y2 is a shape"

# Another process waits for the hosts.
said=$(mktemp)
trap '"$hosts" down; rm -f "$said"' EXIT
orphan() { (bash -c "$1; true" -- "$hosts" >> "$said" 2>&1 &); } # this one's children would share its hosts
within() { # SECONDS COMMAND…
  local end=$((SECONDS + $1))
  until "${@:2}"; do ((SECONDS < end)) || return 1; sleep 0.1; done
}
"$hosts" up 2 1gbit || fail "up ended with $?"
# shellcheck disable=SC2016  # expands in the orphan
orphan '"$1" up 1 && "$1" down && echo "had its turn"'
within 60 grep -q "waiting for process $$," "$said" || fail "another process does not wait: $(cat "$said")"
[[ $(ip netns list) == *spwy1* ]] || fail "another process removed the hosts"
# shellcheck disable=SC2016  # expands in the orphan
orphan '"$1" down'
within 60 grep -q "those of process $$, which still runs" "$said" || fail "another process may remove the hosts: $(cat "$said")"
"$hosts" down
within 60 grep -q "had its turn" "$said" || fail "another process waits for ever: $(cat "$said")"
echo "passed: turns"
exit 0
