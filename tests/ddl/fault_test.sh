#!/usr/bin/env bash
# Faults between processes, judged by what the survivors print: mpirun's exit code says little (with --enable-recovery it
# is 0 whatever happened). usage: fault_test.sh MPIRUN PROGRAM FAULT RANKS VICTIM
# Leaves no process behind: stopped ones are killed at the end, by the ids they printed.
set -u
mpirun=$1 program=$2 fault=$3 ranks=$4 victim=$5
output=$(mktemp)
declare -a recovery=()
[[ $fault == killed ]] && recovery=(--enable-recovery)

"$mpirun" -np "$ranks" --allow-run-as-root --oversubscribe --bind-to none "${recovery[@]}" \
  "$program" "$fault" "$victim" > "$output" 2>&1 &
launcher=$!

clean_up() {
  for pid in $(sed -n 's/^PID //p' "$output"); do kill -KILL "$pid" 2> /dev/null; done
  kill -TERM "$launcher" 2> /dev/null
  wait "$launcher" 2> /dev/null
  rm -f "$output"
}
trap clean_up EXIT

fail() { echo "FAILED ($fault, $ranks ranks, victim $victim): $1"; sed 's/^/  | /' "$output"; exit 1; }

# Which ranks must speak, and what they must say.
survivors=$((ranks - 1)) text="no answer from rank $victim"
if [[ $fault == mismatch ]]; then survivors=$ranks text="rank $victim calls allreduce (sum) of 99999"; fi

spoken() { grep -cF "$1" "$output"; }
if [[ $fault == abort ]]; then
  # The first survivor to abort takes the others with it, and the launcher passes its code on.
  for _ in $(seq 300); do kill -0 "$launcher" 2> /dev/null || break; sleep 0.1; done
  kill -0 "$launcher" 2> /dev/null && fail "mpirun still runs after 30 s"
  wait "$launcher"; code=$?
  [[ $code == 4 ]] || fail "mpirun ended with $code instead of 4"
  [[ $(spoken "$text") -ge 1 ]] || fail "no survivor names the stopped rank"
  echo "passed: abort(4) ended all ranks"; exit 0
fi

for _ in $(seq 300); do [[ $(spoken "DEAD [ddl]") -ge $survivors ]] && break; sleep 0.1; done
[[ $(grep -F "SURVIVOR [ddl] rank " "$output" | grep -cF "$text") == "$survivors" ]] || fail "not every survivor says: $text"
[[ $(spoken "DEAD [ddl]") == "$survivors" ]] || fail "a communicator outlived its error"
[[ $(spoken "NO ERROR") == 0 ]] || fail "a rank saw no error"
echo "passed: $survivors survivors say: $text"
