#!/usr/bin/env bash
# Faults between processes, judged by what the survivors print: mpirun's exit code says little (with --enable-recovery it
# is 0 whatever happened). usage: fault_test.sh MPIRUN PROGRAM FAULT RANKS VICTIM [PLAN LEVELS [WHERE]]; see
# fault_program.cpp for the last five. Leaves no process behind, and says so when mpirun would.
set -u
mpirun=$1 program=$2 fault=$3 ranks=$4 victim=$5 plan=${6:-direct} levels=${7:-} where=${8:-call}
output=$(mktemp)
declare -a recovery=()
[[ $fault == killed ]] && recovery=(--enable-recovery)

"$mpirun" -np "$ranks" --allow-run-as-root --oversubscribe --bind-to none "${recovery[@]}" \
  "$program" "$fault" "$victim" ${levels:+"$plan" "$levels" "$where"} > "$output" 2>&1 &
launcher=$!

alive() {
  local state
  state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2> /dev/null)
  [[ -n $state && $state != [ZX] ]]
}
ranks_alive() { local pid; sed -n 's/^PID //p' "$output" | while read -r pid; do alive "$pid" && echo "$pid"; done; }
clean_up() {
  local pid
  for pid in $(ranks_alive); do kill -KILL "$pid" 2> /dev/null; done
  kill -KILL "$launcher" 2> /dev/null
  wait "$launcher" 2> /dev/null
  rm -f "$output"
}
trap clean_up EXIT

fail() {
  echo "FAILED ($fault, $ranks ranks, victim $victim, $plan over ${levels:-hosts}, $where): $1"
  sed 's/^/  | /' "$output"
  exit 1
}
spoken() { grep -c -- "$1" "$output"; }
# until_gone TENTHS PID…
until_gone() {
  local tenths=$1 pid; shift
  for pid in "$@"; do
    while alive "$pid"; do ((tenths-- > 0)) || return 1; sleep 0.1; done
  done
}

# mpirun ends by itself, with this code, and no rank outlives it.
expect_end() {
  local code pids
  until_gone 300 "$launcher" || fail "mpirun still runs after 30 s"
  wait "$launcher"; code=$?
  [[ $code == "$1" ]] || fail "mpirun ended with $code instead of $1"
  mapfile -t pids < <(ranks_alive)
  until_gone 50 "${pids[@]}" || fail "outlived mpirun: $(ranks_alive | xargs)"
}

if [[ $fault == slow || $fault == busy ]]; then
  expect_end 0
  [[ $(spoken '^NO ERROR on rank') == "$ranks" ]] || fail "not every rank came through"
  [[ $(spoken '^WRONG SUM') == 0 ]] || fail "a sum is wrong"
  echo "passed: a $fault rank is waited for"; exit 0
fi

if [[ $fault == unstarted ]]; then
  # A rank hangs before MPI has started: nobody knows it yet, and MPI_Init waits for it without end. The others end by
  # themselves. mpirun ends the victim then, in about one of 30 runs not: Open MPI 4.1's dies of SIGPIPE, or hangs.
  for _ in $(seq 300); do [[ $(spoken "^PID ") == "$ranks" && $(ranks_alive | wc -l) -le 1 ]] && break; sleep 0.1; done
  [[ $(ranks_alive | wc -l) -le 1 ]] || fail "ranks wait for MPI to start"
  [[ $(spoken '^\[ddl\] no answer to MPI_Init within 5 s') -ge 1 ]] || fail "nobody says that MPI does not start"
  if until_gone 100 "$launcher"; then
    wait "$launcher"; code=$?
    [[ $code == 4 || $code == 141 ]] || fail "mpirun ended with $code instead of 4"
  fi
  echo "passed: MPI that does not start ends all ranks"; exit 0
fi

# What the others say of the victim, and whether it can speak itself.
survivors=$ranks says=
case $fault in
  killed | stopped | abort | absent) survivors=$((ranks - 1)) says="no answer from rank $victim " ;;
  throws) says="rank $victim gave up: [pager] cannot free 3 GiB" ;;
  late) says="no answer from rank $victim " ;;
  count | order) says="rank $victim calls allreduce (sum) of 99999" ;;
  type) says="rank $victim calls allreduce (sum) of 100000 float64 by" ;;
  plan) says="rank $victim calls allreduce (sum) of 100000 float32 by ring, number" ;;
  average) says="rank $victim calls allreduce (average) of 100000" ;;
  broadcast) says="rank $victim calls allreduce (sum) of 100000" ;;
  *) fail "unknown fault" ;;
esac
# Within a reduction they say where, too; who needs nothing of the victim in its round waits for it in a later one.
place=
case $where in
  reduce) place='(level [12] of [12], \(reduce-scatter\|all-gather\), stage [1-9])' ;;
  gather) place='(level [12] of [12], all-gather, stage [1-9])' ;;
esac

if [[ $fault == abort || $fault == absent || $fault == throws ]]; then
  # The first survivor to abort takes the others with it, and the launcher passes its code on.
  code=4
  [[ $fault == throws ]] && code=3
  expect_end "$code"
  grep '^SURVIVOR \[ddl\] rank ' "$output" | grep -F -- "$says" | grep -q -- "$place" || fail "no survivor says: $says$place"
  echo "passed: abort($code) ended all ranks"; exit 0
fi

for _ in $(seq 300); do [[ $(spoken '^DEAD \[ddl\]') -ge $survivors ]] && break; sleep 0.1; done
[[ $(spoken '^DEAD \[ddl\]') == "$survivors" ]] || fail "not every survivor's communicator is dead"
[[ $(spoken '^NO ERROR') == 0 && $(spoken '^WRONG SUM') == 0 ]] || fail "a rank saw no error"
expected=$survivors
if [[ $fault == late ]]; then
  # What it hears is whom the first to give up was waiting for, which may have been another waiting rank.
  grep "^SURVIVOR \[ddl\] rank $victim: rank [0-9]* gave up: no answer from rank" "$output" > /dev/null ||
    fail "the late rank does not hear that the others gave up"
  expected=$((survivors - 1))
fi
named=$(grep '^SURVIVOR \[ddl\] rank ' "$output" | grep -F -- "$says" | grep -c -- "$place")
[[ $named -ge $expected ]] || fail "$named instead of $expected survivors say: $says$place"
# A deadline of 1.5 s, and 2 s more to find out who is alive; the rest is for a machine that is busy.
longest=$(sed -n 's/^WAITED //p' "$output" | sort -n | tail -n 1)
((longest < 15000)) || fail "a survivor waited for $longest ms"

# mpirun takes the survivors, and a stopped victim, along.
kill -TERM "$launcher"
until_gone 100 "$launcher" || fail "mpirun outlives its end"
mapfile -t pids < <(ranks_alive)
until_gone 50 "${pids[@]}" || fail "outlived mpirun: $(ranks_alive | xargs)"
echo "passed: $expected survivors say, at most after $longest ms: $says$place"
