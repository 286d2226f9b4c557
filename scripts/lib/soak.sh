# shellcheck shell=bash disable=SC2154  # one file sets what another reads
# Runs programs of random cases (tests/support/random/cases.h) on more and more seeds, and all tests again and again.

# need_number FLAG VALUE
need_number() {
  [[ $2 =~ ^[0-9]{1,15}$ ]] || die "$1 '$2' is not a whole number"
}

# _explain_failure PROGRAM STATUS LOG: what failed, on which seed, and the command that runs it again.
_explain_failure() {
  local program=$1 status=$2 log=$3 seed test
  grep -aE '^(seed [0-9]+:|again:|smaller:|  )' "$log" | sed 's/^/    /' >&2 || true
  if grep -aq '^again:' "$log"; then die "found something (see above)"; fi
  # It crashed or hung before it could say more.
  seed=$(grep -aoE '^seed [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2) || true
  test=$(grep -aoE '^\[ RUN +\] .*' "$log" | tail -n 1 | sed 's/.*\] //') || true
  tail -n 15 -- "$log" | sed 's/^/    | /' >&2
  die "$(basename -- "$program") $( ((status == 124)) && echo hung || echo "ended with status $status") at seed ${seed:-?}" \
    "again:   $program --gtest_filter=${test:-*} --cases=1 --seed=${seed:-?}"
}

# soak SECONDS SEED PROGRAM…: the programs in turn, on batches of seeds, until the time is up or something fails.
soak() {
  local seconds=$1 seed=$2 batch=20 start=$SECONDS program log status
  shift 2
  log=$(mktemp)
  while ((SECONDS - start < seconds)); do
    for program in "$@"; do
      status=0
      timeout --kill-after=10 900 "$program" "--seed=$seed" "--cases=$batch" >"$log" 2>&1 || status=$?
      ((status == 0)) || _explain_failure "$program" "$status" "$log"
    done
    printf '    seeds %d to %d are fine, %d s\n' "$seed" "$((seed + batch - 1))" "$((SECONDS - start))"
    seed=$((seed + batch))
  done
  rm -f -- "$log"
}

# soak_tests PRESET SECONDS BUSY: every test in random order, beside so many processes that never wait, until the time is up
# or a test fails. A round that has begun is ended.
soak_tests() {
  local preset=$1 seconds=$2 busy=$3 start=$SECONDS round=0 log pids=()
  log=$(mktemp)
  while ((${#pids[@]} < busy)); do
    (trap - EXIT && while :; do :; done) &
    pids+=("$!")
  done
  # shellcheck disable=SC2064  # these processes
  ((busy == 0)) || trap "kill ${pids[*]}" EXIT
  export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(build_jobs)}
  cd -- "$spillway_root" || return
  while ((SECONDS - start < seconds)); do
    round=$((round + 1))
    if ! ctest --preset "$preset" --schedule-random --stop-on-failure --output-on-failure --no-tests=error </dev/null >"$log" 2>&1; then
      tail -n 200 -- "$log" >&2
      die "a test failed in round $round, after $((SECONDS - start)) s (see above); whole log: $log"
    fi
    printf '    %d rounds passed, %d s\n' "$round" "$((SECONDS - start))"
  done
  rm -f -- "$log"
}
