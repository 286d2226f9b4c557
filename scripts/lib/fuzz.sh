# shellcheck shell=bash disable=SC2154  # one file sets what another reads
# Runs the programs of the preset `fuzz`.

# fuzz_targets: prints their names.
fuzz_targets() {
  local folder names=()
  for folder in "$spillway_root"/tests/fuzz/corpus/*/; do names+=("$(basename -- "$folder")"); done
  echo "${names[*]}"
}

# _fuzz_length FOLDER: prints the longest sample's bytes, at least 512. Longer inputs cost time and reach no more code.
_fuzz_length() {
  local longest
  longest=$(find "$1" -type f -printf '%s\n' | sort -n | tail -n 1)
  echo $((longest > 512 ? longest : 512))
}

# _fuzz_one SECONDS RUNS TARGET: one line, on success. Its log and what it finds are in build-fuzz/findings.
_fuzz_one() {
  local seconds=$1 runs=$2 target=$3 program=$build_folder/fuzz/fuzz_$3 status=0
  local log=$build_folder/findings/$target.log corpus=$build_folder/corpus/$target artifact limits
  limits=("-max_len=$(_fuzz_length "$spillway_root/tests/fuzz/corpus/$target")")
  mkdir -p -- "$corpus" "$build_folder/findings"
  [[ -z $seconds ]] || limits+=("-max_total_time=$seconds")
  [[ -z $runs ]] || limits+=("-runs=$runs")
  # What hwloc says of bad XML would fill the log.
  HWLOC_HIDE_ERRORS=2 UBSAN_OPTIONS=print_stacktrace=1 \
    "$program" "${limits[@]}" -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 \
    "-artifact_prefix=$build_folder/findings/$target-" "$corpus" "$spillway_root/tests/fuzz/corpus/$target" \
    </dev/null >"$log" 2>&1 || status=$?
  if ((status == 0)); then
    printf '    %-14s %11d runs %8d/s  fine\n' "$target" "$(_fuzz_stat number_of_executed_units "$log")" \
      "$(_fuzz_stat average_exec_per_sec "$log")"
    return
  fi
  artifact=$(sed -nE 's/.*Test unit written to (.*)/\1/p' "$log" | tail -n 1)
  {
    printf '    %-14s FOUND SOMETHING (status %d)\n' "$target" "$status"
    grep -aE '^(==[0-9]+==ERROR|SUMMARY|.*runtime error:|terminate called|  what\(\):)' "$log" | head -n 5 | sed 's/^/    | /'
    printf '    input:  %s\n    again:  %q %q\n    log:    %s\n' "${artifact:-none}" "$program" "${artifact:-$corpus}" "$log"
  } >&2
  return 1
}

_fuzz_stat() {
  sed -nE "s/^stat::$1: +([0-9]+)/\1/p" "$2" | tail -n 1
}

# fuzz SECONDS RUNS TARGET…: each for SECONDS and RUNS (either may be empty), two at once. Starts no more after a finding.
fuzz() {
  local seconds=$1 runs=$2 target running=0 failed=0
  shift 2
  for target in "$@"; do
    if ((running == 2)); then
      wait -n || failed=1
      running=$((running - 1))
    fi
    ((failed == 0)) || break
    _fuzz_one "$seconds" "$runs" "$target" &
    running=$((running + 1))
  done
  for (( ; running > 0; running--)); do
    wait -n || failed=1
  done
  ((failed == 0)) || die "found something (see above)" \
    "Mend it, and keep its input as a file in tests/fuzz/corpus/TARGET: every build's fuzz_corpus_test reads that."
}
