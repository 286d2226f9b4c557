# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# What every script shares: messages, steps with progress, locks, space and memory. Sourced, never run.

unset CDPATH
[[ -n ${HOME:-} ]] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME
export LC_ALL=C.UTF-8
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"  # `su` without `-` leaves them out, and dpkg needs them

spillway_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." >/dev/null && pwd -P)
spillway_cache=${SPILLWAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spillway}
[[ $spillway_cache == /* ]] || spillway_cache=$PWD/$spillway_cache
export SPILLWAY_CACHE=$spillway_cache  # CMake and the compiler launcher look for it too

say() { printf '==> %s\n' "$*"; }

# die LINE…: says what is missing and what to do about it, and ends the script.
die() {
  printf 'spillway: %s\n' "$1" >&2
  shift
  (($# == 0)) || printf '          %s\n' "$@" >&2
  exit 1
}

# The elapsed time and the last line of LOG, on one line of the terminal each second; in a log file every 15 s.
_tick() {
  local log=$1 start=$SECONDS columns=80 last text elapsed parent=$$
  if [[ -t 1 ]]; then
    columns=$(stty size </dev/tty 2>/dev/null | cut -d' ' -f2) || true
    ((columns > 20)) || columns=80
  fi
  while sleep 1 >/dev/null 2>&1 && kill -0 "$parent" 2>/dev/null; do
    elapsed=$((SECONDS - start))
    last=$(tail -n 1 -- "$log" 2>/dev/null | tr -d '\r' | cut -c1-200) || true
    text="    $elapsed s  $last"
    if [[ -t 1 ]]; then
      printf '\r\033[K%s' "${text:0:columns-1}"
    elif ((elapsed % 15 == 0)); then
      printf '%s\n' "${text:0:120}"
    fi
  done
}

# run_step LABEL LOG COMMAND…: runs a long command with its output in LOG, shows that it lives; on failure the log's end.
run_step() {
  local label=$1 log=$2 start=$SECONDS status=0
  shift 2
  mkdir -p -- "$(dirname -- "$log")"
  : >"$log"
  say "$label"
  _tick "$log" &
  local ticker=$!
  "$@" </dev/null >"$log" 2>&1 || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [[ -t 1 ]]; then printf '\r\033[K'; fi
  if ((status != 0)); then
    printf '    failed after %d s; the end of %s:\n' "$((SECONDS - start))" "$log" >&2
    tail -n 15 -- "$log" | sed 's/^/    | /' >&2
    return "$status"
  fi
  printf '    done in %d s\n' "$((SECONDS - start))"
}

# with_lock FILE WHAT COMMAND…: one run at a time; a second one waits, and says for what.
with_lock() {
  local file=$1 what=$2 fd status=0
  shift 2
  mkdir -p -- "$(dirname -- "$file")" 2>/dev/null || die "cannot make the folder '$(dirname -- "$file")' (no rights or no space)" \
    "SPILLWAY_CACHE=DIR moves the cache."
  { exec {fd}>"$file"; } 2>/dev/null || die "cannot write '$file' (no rights or no space)" "SPILLWAY_CACHE=DIR moves the cache."
  if ! flock -n "$fd"; then
    say "another run is $what; waiting for it (lock: $file)"
    flock "$fd"
  fi
  "$@" || status=$?
  exec {fd}>&-
  return "$status"
}

# need_space FOLDER GB WHAT VARIABLE: FOLDER may not exist yet.
need_space() {
  local folder=$1 need_gb=$2 what=$3 variable=$4 free_mb
  [[ $need_gb =~ ^[0-9]+$ ]] || die "$variable='$need_gb' is not a whole number of GB"
  while [[ ! -d $folder ]]; do folder=$(dirname -- "$folder"); done
  free_mb=$(df -Pm -- "$folder" | tail -n 1 | tr -s ' ' | cut -d' ' -f4)
  ((free_mb >= need_gb * 1000)) && return
  die "not enough disk space for $what: $((free_mb / 1000)).$((free_mb % 1000 / 100)) GB free at '$folder', $need_gb GB needed" \
    "Free some, or set $variable=N (GB) if less will do. SPILLWAY_CACHE=DIR moves the cache to another disk."
}

# How many compilers may run at once: one a core, and 2 GiB of free memory for each. SPILLWAY_JOBS overrides.
build_jobs() {
  if [[ -n ${SPILLWAY_JOBS:-} ]]; then
    [[ $SPILLWAY_JOBS =~ ^[1-9][0-9]*$ ]] || die "SPILLWAY_JOBS='$SPILLWAY_JOBS' is not a positive number"
    echo "$SPILLWAY_JOBS"
    return
  fi
  local jobs free_kb limit file key value
  jobs=$(nproc)
  free_kb=$((jobs * 2097152))
  while read -r key value _; do
    if [[ $key == MemAvailable: ]]; then free_kb=$value; fi
  done </proc/meminfo
  for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    limit=$(cat "$file" 2>/dev/null) || continue
    if [[ $limit =~ ^[0-9]{1,15}$ ]] && ((limit / 1024 < free_kb)); then free_kb=$((limit / 1024)); fi
  done
  ((jobs <= free_kb / 2097152)) || jobs=$((free_kb / 2097152))
  ((jobs >= 1)) || jobs=1
  echo "$jobs"
}
