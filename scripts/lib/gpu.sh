# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# Programs for a machine with a GPU, which may be offline; their tests, a training and a table.

# In the order in which they run: what needs no GPU first, to show that programs run at all.
gpu_tests='core_cuda_device_test swap_core_test swap_gpu_test kfac_gpu_test ddl_gpu_test bench_allreduce_gpu_test runtime_gpu_test'
gpu_benchmarks='gate_overhead copy_rates'
gpu_parts='tests training sanitizer rates paging kfac'

find_gpu_torch() {
  local fault
  torch_folder=${SPILLWAY_TORCH:-}
  if [[ -z $torch_folder ]]; then
    torch_folder=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) ||
      torch_folder=$(_torch_folder) || die "no torch: python3 has none" "Set SPILLWAY_TORCH to a torch folder (include/ and lib/)."
  fi
  [[ $torch_folder == /* ]] || torch_folder=$PWD/$torch_folder  # CMake looks elsewhere for a path that is not whole
  fault=$(torch_fault "$torch_folder")
  [[ -z $fault ]] || die "$fault" "Set SPILLWAY_TORCH to the folder of torch 2.11 with CUDA 13."
  [[ -e $torch_folder/lib/libtorch_cuda.so ]] || die "torch in '$torch_folder' has no CUDA half"
}

# ---- programs: built here, or packed elsewhere

# build_gpu: sets programs and libraries. They are without MPI, because the GPU's machine may have none.
build_gpu() {
  local generator=() command targets=(spillway spillway_cuda) missing=()
  programs=$spillway_root/build-gpu
  for command in cmake g++; do command -v "$command" >/dev/null || missing+=("$command"); done
  command -v ninja >/dev/null || command -v make >/dev/null || missing+=("ninja or make")
  ((${#missing[@]} == 0)) || die "missing on this machine: $(printf '%s, ' "${missing[@]}" | sed 's/, $//')" \
    "Where the build's packages are: scripts/gpu-check --pack DIR; then here: scripts/gpu-check --run-only DIR."
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  mkdir -p -- "$programs"
  run_step "configuring" "$programs/configure.log" cmake -S "$spillway_root" -B "$programs" "${generator[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DSPILLWAY_MPI=OFF -DSPILLWAY_PYTHON=OFF -DSPILLWAY_EXAMPLES=OFF -DSPILLWAY_BENCHMARKS=ON \
    "-DCMAKE_CXX_COMPILER_LAUNCHER=$spillway_root/scripts/lib/compiler_launcher" "-DSPILLWAY_TORCH=$torch_folder" ||
    die "CMake could not configure; whole log: $programs/configure.log" \
      "Where the build's packages are: scripts/gpu-check --pack DIR; then here: scripts/gpu-check --run-only DIR."
  grep -q '^-- CUDA for libspillway_cuda' "$programs/configure.log" ||
    die "there are no CUDA 13 headers and libraries beside torch or in /usr/local/cuda"
  # shellcheck disable=SC2206  # words
  targets+=($gpu_tests $gpu_benchmarks)
  run_step "building" "$programs/build.log" cmake --build "$programs" -j "$(nproc)" --target "${targets[@]}" ||
    die "the build failed; whole log: $programs/build.log"
  libraries=$programs/lib
  version=$(git -C "$spillway_root" describe --always --dirty 2>/dev/null || echo unknown)
  out=${out:-$programs}
}

# _needs_packing NAME: is it none of the C and C++ runtime's libraries, which every machine with torch has?
_needs_packing() {
  case $1 in
    linux-vdso.* | ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libutil.so.* | libstdc++.so.* | libgcc_s.so.*) return 1 ;;
  esac
}

# pack_gpu DIR: copies programs, without symbols, and the distribution's libraries that they need.
pack_gpu() {
  local test name arrow file rest
  mkdir -p -- "$1"/{bin,tests,lib}
  for test in spillway $gpu_benchmarks; do cp -- "$programs/bin/$test" "$1/bin/"; done
  cp -- "$programs/lib/libspillway_cuda.so" "$1/lib/"
  for test in $gpu_tests; do cp -- "$programs/tests/$test" "$1/tests/"; done
  while read -r name arrow file rest; do
    [[ $arrow == '=>' && $file == /* && $file != "$torch_folder"/* && $file != */nvidia/* && $file != "$programs"/* ]] || continue
    ! _needs_packing "$name" || cp -Lf -- "$file" "$1/lib/$name"
  done < <(for file in "$1"/bin/* "$1"/tests/* "$1"/lib/libspillway_cuda.so; do ldd "$file"; done | sort -u)
  strip --strip-unneeded "$1"/bin/* "$1"/tests/* "$1"/lib/*
  printf '%s\n' "$version" >"$1/VERSION"
  say "packed $(du -sh -- "$1" | cut -f1) into '$1'; at the GPU: scripts/gpu-check --run-only DIR"
}

use_packed() {
  programs=$(cd -- "$1" 2>/dev/null && pwd -P) || die "there is no folder '$1'"
  [[ -x $programs/bin/spillway && -e $programs/VERSION ]] || die "nothing was packed in '$1'" "scripts/gpu-check --pack DIR packs it."
  libraries=$programs/lib
  version=$(<"$programs/VERSION")
  out=${out:-$PWD/gpu-check}
}

require_gpu() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null || true)
  [[ -n $gpus ]] || die "no GPU here: nvidia-smi -L names none" "--without-gpu shows that the programs run."
  say "$gpus"
}

# ---- results

begin_results() {
  local nvidia=$torch_folder/../nvidia
  mkdir -p -- "$out"
  rows=$out/rows.tsv
  : >"$rows"
  failed=()
  export LD_LIBRARY_PATH=$libraries:$torch_folder/lib:$nvidia/cu13/lib:$nvidia/nccl/lib:$nvidia/cudnn/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  [[ -z $unified ]] || export SPILLWAY_TEST_UNIFIED=1
}

# try PART SECONDS COMMAND…: runs a part with a limit, its output in a log; the rest goes on after a failure.
try() {
  local part=$1 limit=$2 start=$SECONDS status=0 state=passed
  shift 2
  run_step "$part (at most $limit s)" "$out/$part.log" timeout -k 10 "$limit" "$@" || status=$?
  case $status in
    0) ;;
    124 | 137) state="timed out" ;;
    *) state="failed ($status)" ;;
  esac
  [[ $state == passed ]] || failed+=("$part: $state")
  printf '%s\t%s\t%s\n' "$part" "$state" "$((SECONDS - start))" >>"$rows"
  return "$status"
}

end_results() {
  python3 - "$out" "$version" "$torch_folder" <<'PY' || failed+=("results.json")
import json, os, pathlib, re, subprocess, sys

out, version, torch = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def gtest(log):
    text = log.read_text(errors="replace")
    ran = re.search(r"\[==========\] (\d+) tests? from .* ran", text)
    return {"ran": int(ran[1]) if ran else 0, "passed": len(re.findall(r"^\[       OK \]", text, re.M)),
            "skipped": re.findall(r"^\[  SKIPPED \] (\S+) \(", text, re.M),
            "failed": sorted(set(re.findall(r"^\[  FAILED  \] ([\w./]+)", text, re.M)))}


def loaded(path):
    return json.loads(path.read_text()) if path.exists() else None


parts = []
for line in (out / "rows.tsv").read_text().splitlines():
    name, state, seconds = line.split("\t")
    part = {"part": name, "state": state, "seconds": int(seconds)}
    if name.endswith("_test"):
        part |= gtest(out / f"{name}.log")
    parts.append(part)
names = re.findall(r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
result = {
    "spillway": version,
    "torch": ".".join(re.findall(r"#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
                                 (torch / "include/torch/headeronly/version.h").read_text())),
    "gpus": said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines(),
    "cpu": names[0] if names else "", "cores": os.cpu_count(),
    "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "kernel": os.uname().release,
    "parts": parts,
    "training": {path.stem: loaded(path) for path in sorted(out.glob("train_*.json"))},
    "paging": loaded(out / "paging_gate.json"), "paging_unified": loaded(out / "paging_unified.json"),
    "kfac": loaded(out / "kfac.json"),
}
(out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
PY
  say "results: $out/results.json; a log for each part beside it"
  ((${#failed[@]} == 0)) || die "${#failed[@]} of $(wc -l <"$rows") parts failed:" "${failed[@]}"
}

# ---- parts

run_gpu_tests() {
  local test skipped
  for test in $gpu_tests; do
    try "$test" 600 "$programs/tests/$test" || continue
    skipped=$(grep -c '^\[  SKIPPED \] .*(' "$out/$test.log" || true)
    printf '    %s; %s skipped\n' "$(grep -E '^\[==========\] .* ran' "$out/$test.log")" "$skipped"
    # Unified Memory's tests wait to be asked for.
    if [[ -z $without_gpu ]] && grep -E '^\[  SKIPPED \] (Gpu|GpuRun)Test\..*\(' "$out/$test.log" | grep -v Unified; then
      failed+=("$test: skipped although there is a GPU")
    fi
  done
}

# Prints what each training took, and fails unless the weights are the same.
same_weights='
import json, sys
runs = {name: json.load(open(name)) for name in sys.argv[1:]}
for name, run in runs.items():
    print(name, {key: run.get(key) for key in ("budget_bytes", "peak_bytes", "step_seconds_median", "weights_sha256")})
sys.exit(len({run["weights_sha256"] for run in runs.values()}) != 1)
'

run_gpu_training() {
  local budget name
  for budget in none 60% 40%; do
    name=train_${budget%\%}
    try "$name" 600 "$programs/bin/spillway" train --model unet3d --data "synthetic:$edge" --filters "$filters" --steps "$steps" \
      --deterministic --device cuda --budget "$budget" --json "$out/$name.json" || true
  done
  try train_compare 60 python3 -c "$same_weights" "$out"/train_{none,60,40}.json || true
  cat -- "$out/train_compare.log"
}

# A short training under the sanitizer, where there is one. It reports what expandable segments try (LibTorch falls back).
run_gpu_sanitizer() {
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || true)
  [[ -n $sanitizer ]] || return 0
  try sanitizer 600 env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False "$sanitizer" --error-exitcode 1 \
    "$programs/tests/swap_gpu_test" --gtest_filter=GpuTest.OnDemandGivesTheSameBits || true
}

# Rates that explain the tables: what the gate adds to an operator, and what the lanes copy beside compute.
run_gpu_rates() {
  local program
  for program in $gpu_benchmarks; do
    if try "$program" 120 "$programs/bin/$program" cuda; then cat -- "$out/$program.log"; fi
  done
}

run_gpu_kfac() {
  if try kfac 600 "$programs/bin/spillway" bench kfac --device cuda --model resnet50 --json "$out/kfac.json"; then
    cat -- "$out/kfac.log"
  fi
}

run_gpu_paging() {
  local engine flags
  for engine in gate ${unified:+unified}; do
    flags=()
    [[ $engine == unified ]] || flags=(--peers)
    try "paging_$engine" 900 "$programs/bin/spillway" bench paging --device cuda --engine "$engine" "${flags[@]}" --model unet3d \
      --edge "$edge" --filters "$filters" --steps "$steps" --json "$out/paging_$engine.json" || continue
    cat -- "$out/paging_$engine.log"
  done
}
