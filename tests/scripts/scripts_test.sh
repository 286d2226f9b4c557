#!/usr/bin/env bash
# scripts_test.sh ROOT: what the scripts say and do when something is missing. Needs no network: the commands that would use
# one are stand-ins at the front of PATH.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
chmod 755 "$work"
unset SPILLWAY_TORCH SPILLWAY_CACHE SPILLWAY_JOBS SPILLWAY_CACHE_GB SPILLWAY_BUILD_GB
cases=0

# The clone lives at a path with a space, and so does its cache.
clone="$work/a clone"
mkdir "$clone"
cp -r "$root/scripts" "$root/CMakePresets.json" "$clone/"
export SPILLWAY_CACHE="$work/the cache"

# A bare system's PATH: coreutils and the like, no compiler, no package manager.
bare=$work/bare
mkdir "$bare"
for tool in bash sh env dirname readlink uname id df tail tr cut grep sed head sort cat nproc mkdir rm mv sleep stty paste flock \
  getent printf date; do
  ln -s "$(command -v "$tool")" "$bare/$tool"
done

# stand_in FOLDER NAME: reads the body of a command that stands in for a real one.
stand_in() {
  mkdir -p "$1"
  { echo '#!/bin/bash'; cat; } >"$1/$2"
  chmod +x "$1/$2"
}

# expect STATUS COMMAND…: runs it, keeps what it printed in $work/out.
expect() {
  local want=$1 status=0
  shift
  "$@" >"$work/out" 2>&1 </dev/null || status=$?
  [[ $status == "$want" ]] || { echo "status $status instead of $want from: $*"; cat "$work/out"; exit 1; }
  cases=$((cases + 1))
}
says() {
  local text
  for text in "$@"; do
    grep -qF -- "$text" "$work/out" || { echo "case $cases does not say '$text':"; cat "$work/out"; exit 1; }
  done
}
says_not() {
  ! grep -qF -- "$1" "$work/out" || { echo "case $cases says '$1':"; cat "$work/out"; exit 1; }
}
# in_library FUNCTION [ARGUMENT…]: calls one function of scripts/lib.
in_library() {
  # shellcheck disable=SC2016
  bash -euo pipefail -c 'for part in common packages torch build fuzz soak tests; do source "$0/scripts/lib/$part.sh"; done; "$@"' "$clone" "$@"
}

echo "--- packages"
missing=$work/missing
stand_in "$missing" dpkg </dev/null
stand_in "$missing" apt-get <<<'echo called >>"'"$work"'/apt-called"'
stand_in "$missing" id <<<'echo 1000'
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/build"
says "g++" "cmake" "no rights to install them" "apt-get install --no-install-recommends"
[[ ! -e $work/apt-called ]] || { echo "apt-get was called without rights"; exit 1; }

stand_in "$missing" sudo <<<'exit 1'
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/build"
says "no rights to install them" "apt-get install --no-install-recommends"
[[ ! -e $work/apt-called ]] || { echo "apt-get was called without rights"; exit 1; }

if [[ $(id -u) == 0 ]] && command -v setpriv >/dev/null; then
  rm -rf "$missing/id" "$missing/sudo" "$clone/build"
  expect 1 setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$work" SPILLWAY_CACHE="$work/nobody" \
    PATH="$missing:$bare" bash "$clone/scripts/build"
  says "cannot make the folder '$clone/build'"
  install -d -o 65534 "$clone/build"
  install -d -o 65534 "$work/nobody"
  expect 1 setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$work" SPILLWAY_CACHE="$work/nobody" \
    PATH="$missing:$bare" bash "$clone/scripts/build"
  says "no rights to install them" "apt-get install --no-install-recommends"
  rm -rf "$clone/build"
fi

stand_in "$missing" id <<<'echo 0'
stand_in "$missing" apt-get <<<'echo "Err: Temporary failure resolving the mirror"; exit 100'
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/build"
says "no network: apt-get could not fetch: g++" "| Err: Temporary failure resolving" "apt.log" "offline"

stand_in "$missing" apt-get <<<'echo "E: held broken packages"; exit 100'
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/build"
says "apt-get could not install: g++" "| E: held broken packages"
says_not "no network"

stand_in "$missing" apt-get </dev/null
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/build"
says "still missing after apt-get: g++"

# Torch is there already, and Debian's Python has its headers but makes no environments.
plain=$work/plain
stand_in "$plain" python3 <<<'[[ $* != *ensurepip* ]]'
# shellcheck disable=SC2016
expect 0 env PATH="$plain:$PATH" bash -euo pipefail -c '
  source "$0/scripts/lib/packages.sh"
  pick_python() { _first_python "sys, venv, ensurepip, no_such_module"; }
  if pick_python; then exit 1; fi
  _has_python_headers' "$clone"

expect 1 env PATH="$bare" bash "$clone/scripts/build"
says "missing: g++ cmake" "this system has no apt-get"

forbidden=$work/forbidden
stand_in "$forbidden" apt-get <<<'echo "apt-get called: $*"; exit 1'
PATH="$forbidden:$PATH" SPILLWAY_TORCH=/somewhere expect 0 in_library ensure_packages
says_not "apt-get called"

# What tests alone need does not end them.
stand_in "$missing" apt-get <<<'echo "E: no such package"; exit 100'
PATH="$missing:$bare" expect 0 in_library ensure_test_packages
says "apt-get could not install: chromium" "is skipped"

echo "--- arguments and settings"
expect 1 bash "$clone/scripts/build" --preset nonsense
says "unknown preset 'nonsense'"
expect 1 bash "$clone/scripts/build" nonsense
says "unknown argument 'nonsense'"
expect 1 env PATH="$bare" bash "$clone/scripts/build" --preset cpu asan
says "unknown argument 'asan'"
for typo in --timing "--timings asan"; do
  # shellcheck disable=SC2086  # two words are two arguments
  expect 1 env PATH="$bare" bash "$clone/scripts/build" $typo
  says "unknown argument '${typo##* }'" "--preset cpu|asan|tsan|fuzz] | --timings"
  [[ ! -e $clone/build-timings ]] || { echo "a build to be timed was begun"; exit 1; }
done
expect 1 env PATH="$bare" bash "$clone/scripts/demo" --edge
says "unknown argument '--edge'" "Usage: scripts/demo"
SPILLWAY_JOBS=0 expect 1 in_library build_jobs
says "SPILLWAY_JOBS='0'"
expect 0 in_library build_jobs
expect 1 in_library need_space / lots "the test" SPILLWAY_CACHE_GB
says "SPILLWAY_CACHE_GB='lots' is not a whole number"
SPILLWAY_CACHE=/dev/null/cache expect 1 in_library ensure_torch
says "cannot make the folder '/dev/null/cache'" "SPILLWAY_CACHE=DIR moves the cache"

echo "--- an installed LibTorch"
# fake_torch FOLDER MINOR: what the scripts look at.
fake_torch() {
  mkdir -p "$1/include/ATen" "$1/include/torch/headeronly" "$1/lib"
  touch "$1/include/ATen/ATen.h" "$1/lib/libtorch_cpu.so"
  printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR %s\n' "$2" >"$1/include/torch/headeronly/version.h"
}
expect 1 env SPILLWAY_TORCH="$work/nowhere" bash "$clone/scripts/build"
says "SPILLWAY_TORCH: there is no folder '$work/nowhere'" "Unset it"
mkdir "$work/empty"
expect 1 env SPILLWAY_TORCH="$work/empty" bash "$clone/scripts/build"
says "has no include/ATen/ATen.h"
fake_torch "$work/old torch" 9
expect 1 env SPILLWAY_TORCH="$work/old torch" bash "$clone/scripts/build"
says "is torch 2.9, not 2.11"
fake_torch "$work/good torch" 11
SPILLWAY_TORCH="$work/good torch" expect 0 in_library ensure_torch
expect 1 env SPILLWAY_TORCH="$work/good torch" SPILLWAY_BUILD_GB=999999 bash "$clone/scripts/build"
says "not enough disk space for the build" "999999 GB needed" "SPILLWAY_BUILD_GB=N"
expect 1 env SPILLWAY_TORCH="$work/good torch" SPILLWAY_BUILD_GB=0 bash "$clone/scripts/build"
says "CMake could not configure"  # this clone has no CMakeLists.txt

echo "--- tidy"
expect 1 env PATH="$bare" bash "$clone/scripts/tidy" --alles
says "unknown option '--alles'" "[--since COMMIT | --all | FILE…]"
expect 1 env PATH="$bare" bash "$clone/scripts/tidy" --seconds
says "[--seconds N]"
expect 1 env PATH="$bare" bash "$clone/scripts/tidy" --seconds soon
says "--seconds wants a whole number, not 'soon'"
tidy=$work/tidy
stand_in "$tidy" clang-tidy <<<'echo called >>"'"$tidy"'/calls"'
git init -q "$clone"
expect 1 env SPILLWAY_TORCH="$work/good torch" PATH="$tidy:$PATH" bash "$clone/scripts/tidy" --since v9
says "no commit is named 'v9'" "[--since COMMIT | --all | FILE…]"
[[ ! -e $clone/build-tidy && ! -e $tidy/calls ]] || { echo "something was checked"; exit 1; }
rm -rf "$clone/.git"

echo "--- lint"
expect 1 bash "$clone/scripts/lint" --fix
says "unknown argument '--fix'" "Usage: scripts/lint"
checkers=$work/checkers
stand_in "$checkers" clang-format </dev/null
stand_in "$checkers" shellcheck </dev/null
expect 1 env SPILLWAY_TORCH="$work/good torch" PATH="$checkers:$PATH" bash "$clone/scripts/lint"
says "is not of an environment of Python" "ruff and mypy are not there"

echo "--- torch's interpreter is gone"
if python3 -c 'import venv, ensurepip' 2>/dev/null; then
  version=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  mkdir -p "$work/gone/bin" "$work/gone/lib/$version/site-packages/torch"
  ln -s nowhere "$work/gone/bin/python"
  # shellcheck disable=SC2016  # the inner shell expands it
  expect 0 env SPILLWAY_TORCH="$work/gone/lib/$version/site-packages/torch" bash -c '
    for part in common packages torch python; do source "$1/scripts/lib/$part.sh"; done
    torch_folder=$SPILLWAY_TORCH && torch_python_is_gone && "$(_python_of_torch)" --version' sh "$clone"
  says "Python 3."
fi
# An environment of Python whose pip reaches nothing.
environment=$work/environment
fake_torch "$environment/lib/python3.11/site-packages/torch" 11
stand_in "$environment/bin" python <<'PYTHON'
case "$*" in
  "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *purelib*) dirname "$0" ;;
  *"pip install"*) echo "No matching distribution found for $*" && exit 1 ;;
esac
PYTHON
expect 1 env SPILLWAY_TORCH="$environment/lib/python3.11/site-packages/torch" PATH="$checkers:$PATH" bash "$clone/scripts/lint"
says "| No matching distribution found" "--require-hashes -r $clone/scripts/locks/lint.txt" "ruff and mypy are not there" "lint.log"

echo "--- gpu-check"
expect 1 bash "$clone/scripts/gpu-check" --edge zero
says "--edge wants a positive number, not 'zero'"
expect 1 bash "$clone/scripts/gpu-check" --card
says "unknown argument '--card'" "--pack DIR"
expect 1 bash "$clone/scripts/gpu-check" --only tests,flying
says "there is no part 'flying'" "tests training sanitizer rates paging kfac"
expect 1 env SPILLWAY_TORCH="$work/nowhere" bash "$clone/scripts/gpu-check"
says "there is no folder '$work/nowhere'" "torch 2.11 with CUDA 13"
expect 1 env SPILLWAY_TORCH="$work/good torch" bash "$clone/scripts/gpu-check"
says "has no CUDA half"
touch "$work/good torch/lib/libtorch_cuda.so"
expect 1 env SPILLWAY_TORCH="$work/good torch" PATH="$bare" bash "$clone/scripts/gpu-check"
says "missing on this machine: cmake, g++, ninja or make" "--run-only DIR"
mkdir "$work/nothing packed"
expect 1 env SPILLWAY_TORCH="$work/good torch" bash "$clone/scripts/gpu-check" --run-only "$work/nothing packed"
says "nothing was packed in '$work/nothing packed'"
# What was packed: a test that passes and skips, one that fails, one that hangs; programs that must not run without a GPU.
packed=$work/packed
mkdir -p "$packed"/{bin,tests,lib}
echo 1.2.3 >"$packed/VERSION"
for test in core_cuda_device_test swap_core_test swap_gpu_test kfac_gpu_test ddl_gpu_test bench_allreduce_gpu_test runtime_gpu_test; do
  cat >"$packed/tests/$test" <<'EOF'
#!/bin/sh
echo "[       OK ] Some.test (1 ms)"
echo "[  SKIPPED ] GpuTest.Other (0 ms)"
echo "[==========] 2 tests from 1 test suite ran. (1 ms total)"
EOF
  chmod +x "$packed/tests/$test"
done
printf '#!/bin/sh\necho "[  FAILED  ] Some.test (1 ms)"\nexit 1\n' >"$packed/tests/swap_gpu_test"
printf '#!/bin/sh\necho ran >"%s/ran"\n' "$work" >"$packed/bin/spillway"
chmod +x "$packed/bin/spillway"
expect 1 env SPILLWAY_TORCH="$work/good torch" PATH="$bare" bash "$clone/scripts/gpu-check" --run-only "$packed" --out "$work/gpu"
says "no GPU here" "--without-gpu"
expect 1 env SPILLWAY_TORCH="$work/good torch" bash "$clone/scripts/gpu-check" --run-only "$packed" --out "$work/gpu" --without-gpu
says "1 of 7 parts failed:" "swap_gpu_test: failed (1)"
[[ ! -e $work/ran ]] || { echo "it trained without a GPU"; exit 1; }
python3 - "$work/gpu/results.json" <<'EOF'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["spillway"] == "1.2.3" and result["cores"] >= 1, result
parts = {part["part"]: part for part in result["parts"]}
assert len(parts) == 7, parts
assert parts["runtime_gpu_test"]["state"] == "passed" and parts["runtime_gpu_test"]["skipped"] == ["GpuTest.Other"], parts
assert parts["swap_gpu_test"]["failed"] == ["Some.test"], parts
EOF

echo "--- installing torch"
# A Python whose pip takes a second and leaves what the scripts look at.
snake=$work/snake
stand_in "$snake" python3 <<'PYTHON'
[[ $1 == -m ]] || exit 0
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'INNER'
#!/bin/bash
home=$(dirname "$(dirname "$0")")
case "$*" in
  *"pip install"*)
    echo "installed $*" >>"$INSTALLATIONS"
    sleep 1
    torch=$home/lib/python3.11/site-packages/torch
    mkdir -p "$torch/include/ATen" "$torch/include/torch/headeronly" "$torch/lib"
    touch "$torch/include/ATen/ATen.h" "$torch/lib/libtorch_cpu.so"
    printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n' >"$torch/include/torch/headeronly/version.h"
    ;;
  --version) echo "Python 3.11.2" ;;
esac
INNER
chmod +x "$3/bin/python"
PYTHON
with_snake() { PATH="$snake:$PATH" in_library ensure_torch; }
SPILLWAY_CACHE_GB=999999 expect 1 with_snake
says "not enough disk space for torch" "999999 GB needed" "SPILLWAY_CACHE_GB=N"
if in_library pick_python >/dev/null; then
  # The real pip, kept from any index.
  PIP_NO_INDEX=1 PIP_FIND_LINKS='' SPILLWAY_CACHE_GB=0 expect 1 in_library ensure_torch
  says "pip could not install torch==2.11.0 and numpy" "    | " "torch.log" "offline" "SPILLWAY_TORCH"
else
  mkdir -p "$SPILLWAY_CACHE/torch-2.11.0"
  touch "$SPILLWAY_CACHE/torch-2.11.0/.spillway-installing"
  echo "    left out: pip without an index, because no Python here makes virtual environments"
fi

export INSTALLATIONS=$work/installations SPILLWAY_CACHE_GB=0
installations() { grep -c installed "$INSTALLATIONS"; }

expect 0 with_snake
says "never ended: starting again" "done in"
[[ $(installations) == 1 ]]
grep -qF -- "--require-hashes -r $clone/scripts/locks/torch.txt" "$INSTALLATIONS"
expect 0 with_snake
[[ $(installations) == 1 && ! -s $work/out ]] || { echo "a second run was not silent"; cat "$work/out"; exit 1; }

rm -rf "$SPILLWAY_CACHE" "$INSTALLATIONS"
with_snake >"$work/first" 2>&1 &
sleep 0.3
expect 0 with_snake
wait $!
[[ $(installations) == 1 ]] || { echo "two runs at once installed $(installations) times"; exit 1; }
cat "$work/first" >>"$work/out"
says "another run is installing torch; waiting for it"

home=$SPILLWAY_CACHE/torch-2.11.0
mv "$home/.spillway-complete" "$work/stamp"
expect 0 with_snake
[[ $(installations) == 1 && -e $home/.spillway-complete ]] || { echo "a whole environment was not adopted"; exit 1; }
rm "$home/.spillway-complete"
touch "$home/.spillway-installing"
expect 0 with_snake
[[ $(installations) == 2 && ! -e $home/.spillway-installing ]] || { echo "a half-finished one was not redone"; exit 1; }
rm "$home/bin/python"
expect 0 with_snake
[[ $(installations) == 2 ]] || { echo "a whole LibTorch was not used because its Python does not run here"; exit 1; }
echo "torch 1.0 for a loom" >"$home/.spillway-complete"
rm "$home/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
expect 0 with_snake
[[ $(installations) == 3 && -e $home-2/.spillway-complete ]] || { echo "an environment for another machine was used"; exit 1; }
[[ -e $home/lib/python3.11/site-packages/torch/include/ATen/ATen.h ]] || { echo "an installation that others may use was removed"; exit 1; }
expect 0 with_snake
[[ $(installations) == 3 && ! -s $work/out ]] || { echo "the second installation was not found again"; cat "$work/out"; exit 1; }

echo "--- ctest's lines"
cat >"$work/LastTest.log" <<'LOG'
1/2 Test: a_test
[       OK ] A.Works (0 ms)
[       OK ] A.Works (1 ms)
[  SKIPPED ] A.NeedsAGpu (0 ms)
2/2 Test: b_test
[       OK ] A.Works (0 ms)
[  FAILED  ] A.Fails (0 ms)
[  FAILED  ] A.Fails
LOG
printf '%s\n' '1/1 Test #1: a_test ... Passed' '' '50% tests passed, 1 tests failed out of 2' '' 'Total Test time (real) = 1 sec' >"$work/ctest"
# shellcheck disable=SC2016
expect 0 bash -c 'source "$0/scripts/lib/tests.sh"; _summary_last "$1" <"$2"' "$clone" "$work/LastTest.log" "$work/ctest"
says "GoogleTest cases inside: 2 passed, 1 failed, 1 skipped." "skipped: a_test A.NeedsAGpu"
[[ $(tail -n 1 "$work/out") == 'Total Test time (real) = 1 sec' ]] || { echo "the summary is not last"; cat "$work/out"; exit 1; }

echo "--- soak"
expect 1 bash "$clone/scripts/soak" --seconds lots
says "--seconds 'lots' is not a whole number"
expect 1 bash "$clone/scripts/soak" --seed
says "--seed wants a value"
expect 1 bash "$clone/scripts/soak" forever
says "unknown argument 'forever'"
random=$work/random
# shellcheck disable=SC2016  # the stand-in expands it
stand_in "$random" later <<<'echo "$*" >>"'"$random"'/calls"; [[ $1 != --seed=120 ]] || { printf "%s\n" "seed 121: other bits" "again:   later --seed=121"; exit 1; }'
expect 1 in_library soak 600 100 "$random/later"
says "seeds 100 to 119 are fine" "seed 121: other bits" "again:   later --seed=121" "found something"
[[ $(<"$random/calls") == $'--seed=100 --cases=20\n--seed=120 --cases=20' ]] || { echo "called with:"; cat "$random/calls"; exit 1; }
expect 0 in_library soak 1 200 "$random/later"
says "seeds 200 to 219 are fine"
stand_in "$random" crashes <<<'printf "%s\n" "[ RUN      ] A.Test" "seed 3" "seed 4"; kill -SEGV $$'
expect 1 in_library soak 5 1 "$random/crashes"
says "crashes ended with status 139 at seed 4" "again:   $random/crashes --gtest_filter=A.Test --cases=1 --seed=4"

echo "--- fuzz"
expect 1 bash "$clone/scripts/fuzz" --seconds lots
says "--seconds 'lots' is not a positive number"
expect 1 bash "$clone/scripts/fuzz" --runs
says "--runs '' is not a positive number"
expect 1 bash "$clone/scripts/fuzz" --forever
says "unknown argument '--forever'"
mkdir -p "$clone/tests/fuzz/corpus/"{good,bad}
expect 1 bash "$clone/scripts/fuzz" worse
says "unknown target 'worse': bad good"
expect 1 env PATH="$missing:$bare" bash "$clone/scripts/fuzz" good
says "libclang-rt-dev"
fuzzers=$work/fuzzers
# shellcheck disable=SC2016  # the stand-ins expand it
stand_in "$fuzzers/fuzz" fuzz_good <<<'printf "%s\n" "called with $*" "stat::number_of_executed_units: 1234" "stat::average_exec_per_sec:     56"'
stand_in "$fuzzers/fuzz" fuzz_bad <<<'printf "%s\n" "x.cpp:1: runtime error: overflow" "artifact_prefix=...; Test unit written to /some/crash-1"; exit 77'
export build_folder=$fuzzers
expect 0 in_library fuzz 5 "" good
says "good" "1234 runs" "56/s"
grep -q -- "-max_len=512 -max_total_time=5" "$fuzzers/findings/good.log" || { cat "$fuzzers/findings/good.log"; exit 1; }
expect 1 in_library fuzz "" 9 good bad
unset build_folder
says "1234 runs" "FOUND SOMETHING (status 77)" "runtime error: overflow" "input:  /some/crash-1" "again:  $fuzzers/fuzz/fuzz_bad /some/crash-1"

echo "--- make_corpus.py"
expect 0 python3 -B "$root/tests/fuzz/make_corpus.py" "$work/corpus"
(cd "$work/corpus" && find . -type f) | while read -r input; do
  [[ -f $root/tests/fuzz/corpus/$input ]] || { echo "not in tests/fuzz/corpus: $input"; exit 1; }
done

if command -v shellcheck >/dev/null; then
  echo "--- shellcheck"
  shellcheck "$root"/scripts/{build,demo,fuzz,soak,test} "$root"/scripts/lib/* "$root/.ci/run" "$root"/tests/{scripts,consumer}/*.sh
fi
echo "$cases cases"
