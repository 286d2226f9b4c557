#!/usr/bin/env bash
# ddlrun over several emulated hosts: what preflight sees of them, a host that is not there, a link that is down, a
# launch, and its exit code.
# usage: ddlrun_emulated_hosts_test.sh EMULATED_HOSTS DDLRUN; 77: this machine does not allow it
set -u
hosts=$1 program=$2
"$hosts" usable || { echo "skipped: needs root and iproute2"; exit 77; }
folder=$(mktemp -d)
trap '"$hosts" down; rm -rf "$folder"' EXIT
"$hosts" up 2 1gbit || { echo "skipped: no network namespaces or no shaping here"; exit 77; }

fail() { echo "FAILED: $*"; cat "$folder/out" "$folder/err"; exit 1; }
# The launcher's arguments that keep ranks on the emulated network, and its agent.
read -ra words <<< "$("$hosts" launcher 2x1)"
network='' agent=''
for ((i = 0; i < ${#words[@]}; ++i)); do
  [[ ${words[i]} == --oversubscribe ]] && network+=' --oversubscribe'
  [[ ${words[i]} == --mca ]] || continue
  if [[ ${words[i + 1]} == plm_rsh_agent ]]; then agent=${words[i + 2]}; else network+=" ${words[*]:i:3}"; fi
done
ddlrun() { # EXPECTED_CODE ARGUMENTS…
  local expected=$1 code=0
  shift
  timeout 100 "$program" --allow-run-as-root --agent "$agent" --mpi-args "$network" "$@" > "$folder/out" 2> "$folder/err" || code=$?
  [[ $code == "$expected" ]] || fail "$* ended with $code, not $expected"
  echo "ended with $code as it should: $*"
}
says() { grep -qE -- "$2" "$folder/$1" || fail "$1 does not say '$2'"; }

# shellcheck disable=SC2016  # the ranks' shell expands it
ddlrun 0 -H spwy0:2,spwy1:1 --json "$folder/json" sh -c 'echo "rank $OMPI_COMM_WORLD_RANK on $(hostname)"'
[[ $(sort "$folder/out") == $'rank 0 on spwy0\nrank 1 on spwy0\nrank 2 on spwy1' ]] || fail "ranks are elsewhere"
says err '^level 1: latency [0-9.]+ us, [0-9.]+ GB/s a link'
says err '^level 2: latency [0-9.]+ us, [0-9.]+ GB/s a link'
says err '^the same on all hosts: .*/sh, [1-9][0-9]* libraries, '
says err '^spwy1 +[0-9]+ +[0-9.]+ [KMGT]iB '
python3 - "$folder/json" << 'PYTHON' || fail "the JSON file is not as it should be"
import json, sys
result = json.load(open(sys.argv[1]))
found = result["preflight"]
assert [(host["name"], host["ranks"]) for host in found["hosts"]] == [("spwy0", 2), ("spwy1", 1)], found
assert found["levels"] == result["levels"] == "2+1" and len(found["links"]) == 2 and not found["errors"], found
PYTHON

ddlrun 7 -H spwy0:1,spwy1:1 sh -c 'exit 7'
ddlrun 0 -H spwy0:1,spwy1:1 --preflight-only sh -c 'echo launched'
says out '^the same on all hosts'
grep -qx launched "$folder/out" && fail "--preflight-only launched"

ddlrun 4 -H spwy0:1,spwy7:1 sh -c 'echo launched'
says err '^ddlrun: \[preflight\] unreachable: spwy7 \(.*spwy7'
grep -qx launched "$folder/out" && fail "launched although a host does not answer"

ip netns exec spwy1 ip link set eth0 down
ddlrun 4 -H spwy0:1,spwy1:1 --timeout 5 sh -c 'echo launched'
says err '^ddlrun: \[preflight\] the ranks did not come together within 5 s'
exit 0
