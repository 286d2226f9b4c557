# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# Set-up, configuration and build of one preset; does nothing, quickly, when nothing has changed.

# Ninja's lines, of which a log gets one per 5 %; warnings and errors pass.
_thin_out() {
  local line next=0 percent start=$SECONDS heard=$SECONDS status
  while true; do
    status=0
    IFS= read -r -t 30 line || status=$?
    if ((status > 128)); then
      printf '    building: %d s\n' "$((SECONDS - start))"
      continue
    fi
    if ((status != 0)) && [[ -z $line ]]; then break; fi
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (.*) ]]; then
      percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      if ((percent >= next || SECONDS - heard >= 15)); then
        printf '    %3d %%, %d s: %s\n' "$percent" "$((SECONDS - start))" "${BASH_REMATCH[3]:0:100}"
        next=$((percent - percent % 5 + 5))
        heard=$SECONDS
      fi
    else
      printf '%s\n' "$line"
    fi
  done
}

_configure() {
  local preset=$1 build=$2 key fresh=() werror=${SPILLWAY_WERROR:-OFF}
  key="preset $preset, warnings are errors: $werror, source $spillway_root, torch $torch_folder, cache $spillway_cache, $(command -v cmake), $(command -v g++)"
  if [[ -e $build/build.ninja && -e $build/.spillway-configured && $(<"$build/.spillway-configured") == "$key" ]]; then return; fi
  need_space "$build" "${SPILLWAY_BUILD_GB:-3}" "the build" SPILLWAY_BUILD_GB
  # The folder may have been moved, or have been configured for another torch or compiler.
  [[ ! -e $build/CMakeCache.txt ]] || fresh=(--fresh)
  rm -f -- "$build/.spillway-configured"
  run_step "configuring ($preset)" "$build/configure.log" \
    cmake -S "$spillway_root" -B "$build" --preset "$preset" "${fresh[@]}" "-DSPILLWAY_TORCH=$torch_folder" "-DSPILLWAY_CACHE_DIR=$spillway_cache" \
    "-DSPILLWAY_WERROR=$werror" ||
    die "CMake could not configure; whole log: $build/configure.log"
  printf '%s\n' "$key" >"$build/.spillway-configured"
}

_compile() {
  local preset=$1 build=$2 jobs targets=("${@:3}") status=0 start=$SECONDS
  jobs=$(build_jobs)
  case $preset in
    tsan) targets=(torch_free_tests) ;;
    fuzz) targets=(fuzz_programs) ;;
  esac
  say "building ($preset, $jobs at once)"
  if [[ -t 1 ]]; then
    NINJA_STATUS='    [%f/%t, %e s] ' ninja -C "$build" -j "$jobs" "${targets[@]}" || status=$?
  else
    NINJA_STATUS='[%f/%t] ' ninja -C "$build" -j "$jobs" "${targets[@]}" 2>&1 | tee "$build/build.log" | _thin_out || status=$?
  fi
  if ((status != 0)); then
    if grep -qs 'Killed signal terminated program' "$build/build.log"; then
      die "the compiler was killed: too little memory for $jobs at once" "SPILLWAY_JOBS=1 scripts/build takes less."
    fi
    die "the build failed (see above)"
  fi
  printf '    done in %d s: %s\n' "$((SECONDS - start))" "$build"
}

_configure_and_compile() {
  _configure "$1" "$2"
  _compile "$@"
}

# build_preset PRESET [TARGET…]: everything up to a finished build, of all or of these alone; sets build_folder.
build_preset() {
  local preset=$1
  shift
  case $preset in
    cpu) build_folder=$spillway_root/build ;;
    asan | tsan) build_folder=$spillway_root/build-$preset ;;
    fuzz)
      build_folder=$spillway_root/build-$preset
      spillway_packages+=$spillway_fuzz_packages
      ;;
    *) die "unknown preset '$preset': cpu, asan, tsan or fuzz" ;;
  esac
  mkdir -p -- "$build_folder" 2>/dev/null || die "cannot make the folder '$build_folder' (no rights or no space)"
  ensure_packages
  ensure_tools_are_new_enough
  ensure_torch
  with_lock "$build_folder/.spillway-lock" "building in '$build_folder'" _configure_and_compile "$preset" "$build_folder" "$@"
}

# time_builds: what scripts/demo builds, and then the rest of what scripts/test does, from nothing and without ccache.
time_builds() {
  local build=$spillway_root/build-timings start=$SECONDS demo
  ensure_packages
  ensure_tools_are_new_enough
  ensure_torch
  rm -rf -- "$build"
  mkdir -p -- "$build"
  export CCACHE_DISABLE=1
  _configure cpu "$build"
  _compile cpu "$build" spillway
  demo=$((SECONDS - start))
  _compile cpu "$build"
  say "from nothing, torch already there, $(build_jobs) compilers at once"
  printf '    %5d s  for scripts/demo\n    %5d s  for scripts/test\n' "$demo" "$((SECONDS - start))"
  say "compiler seconds by folder, and files"
  _sum_seconds "$build/.ninja_log" '/CMakeFiles/[^/]*\.dir/.*' 15
  say "slowest files"
  _sum_seconds "$build/.ninja_log" 'CMakeFiles/[^/]*\.dir/' 15
}

# _sum_seconds LOG PATTERN COUNT: the outputs in ninja's log without what matches PATTERN, with the most seconds first.
_sum_seconds() {
  awk -F '\t' -v pattern="$2" 'NR > 1 && /\.o\t/ {
      name = $4; sub(pattern, "", name); seconds[name] += ($2 - $1) / 1000; files[name]++
    } END { for (name in seconds) printf "    %7.1f s %4d  %s\n", seconds[name], files[name], name }' "$1" |
    sort -rn | head -n "$3"
}
