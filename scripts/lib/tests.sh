# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# Runs ctest, counts the GoogleTest cases inside its programs, and leaves ctest's summary for the end.

# count_cases LOG: GoogleTest's own lines in ctest's log. Every rank of an MPI test may print one; each counts once.
count_cases() {
  local line test='' name passed=0 failed=0 skipped=0 names=()
  local -A seen=()
  while IFS= read -r line; do
    if [[ $line =~ ^[0-9]+/[0-9]+\ Test:\ (.*) ]]; then
      test=${BASH_REMATCH[1]}
    elif [[ $line =~ ^\[\ *(OK|FAILED|SKIPPED)\ +\]\ ([^\ ,]+)\ \( ]]; then
      name="$test ${BASH_REMATCH[2]}"
      [[ -z ${seen[$name]:-} ]] || continue
      seen[$name]=1
      case ${BASH_REMATCH[1]} in
        OK) passed=$((passed + 1)) ;;
        FAILED) failed=$((failed + 1)) ;;
        SKIPPED)
          skipped=$((skipped + 1))
          names+=("$name")
          ;;
      esac
    fi
  done <"$1"
  printf 'GoogleTest cases inside: %d passed, %d failed, %d skipped.\n' "$passed" "$failed" "$skipped"
  ((skipped == 0)) || printf '  skipped: %s\n' "${names[@]}"
}

# Passes ctest's lines on, but holds its summary back until the cases are counted.
_summary_last() {
  local line summary='' log=$1
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line =~ ^[0-9]+%\ tests\ passed ]]; then
      printf '%s' "$summary"  # a failed test may have shown such a line; the last one is the summary
      summary=$line$'\n'
    elif [[ -n $summary ]]; then
      summary+=$line$'\n'
    else
      printf '%s\n' "$line"
    fi
  done
  [[ ! -e $log ]] || count_cases "$log"
  printf '\n%s' "$summary"
}

run_tests() {
  local preset=$1 log=$build_folder/Testing/Temporary/LastTest.log
  shift
  # GoogleTest programs on several ranks count as so many; waiting threads of OpenMP leave the cores to others (CMakePresets.json).
  export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(build_jobs)}
  # Each core has a test, so kernels have one thread but in tests of several (THREADS). scripts/soak --tests leaves them all.
  [[ $preset != cpu ]] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  cd -- "$spillway_root" || return
  rm -f -- "$log"
  say "testing ($preset)"
  ctest --preset "$preset" --no-tests=error --test-output-size-passed 1000000 --test-output-size-failed 1000000 "$@" \
    </dev/null 2>&1 | _summary_last "$log"
}
