# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# A build for a machine with a GPU, which may be offline; its tests and its table.

# What the build needs beside compiler and torch: Debian's package, its header, what else of it must come along.
gpu_packages='
libhwloc-dev        hwloc.h                libhwloc15 libudev1 libltdl7
libxxhash-dev       xxhash.h               libxxhash0
libniftiio-dev      nifti/nifti1_io.h      libniftiio2 libznz-dev libznz3
zlib1g-dev          zlib.h                 -
libssl-dev          openssl/evp.h          libssl3
libcli11-dev        CLI/CLI.hpp            -
nlohmann-json3-dev  nlohmann/json.hpp      -
libgtest-dev        gtest/gtest.h          -
'

# pack_gpu_packages DIR: fetches the packages, where there is a network.
pack_gpu_packages() {
  local package header more name all=()
  while read -r package header more; do
    [[ -n $package ]] || continue
    all+=("$package")
    [[ $more == - ]] || for name in $more; do all+=("$name"); done
  done <<<"$gpu_packages"
  mkdir -p -- "$1"
  say "fetching ${#all[@]} packages into '$1'"
  for name in "${all[@]}"; do
    # Some names differ between releases; what is missing at the GPU is told there.
    (cd -- "$1" && apt-get download -qq "$name") || printf '    no package %s here\n' "$name"
  done
}

unpack_gpu_packages() {
  local package
  compgen -G "$1/*.deb" >/dev/null || die "there are no .deb files in '$1'" "scripts/gpu-check --pack DIR fetches them."
  command -v dpkg >/dev/null || die "no dpkg on this machine to unpack '$1' with"
  for package in "$1"/*.deb; do dpkg -x "$package" "$build_folder/deps"; done
}

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

# Everything that is missing, at once.
require_gpu_packages() {
  local package header more folder found missing=()
  for command in cmake g++; do command -v "$command" >/dev/null || missing+=("$command"); done
  command -v ninja >/dev/null || command -v make >/dev/null || missing+=("ninja or make")
  while read -r package header more; do
    [[ -n $package ]] || continue
    found=
    for folder in "$build_folder"/deps/usr/include{,/x86_64-linux-gnu,/aarch64-linux-gnu} /usr/include{,"/$(uname -m)-linux-gnu"} /usr/local/include; do
      [[ ! -e $folder/$header ]] || found=1
    done
    [[ -n $found ]] || missing+=("$package ($header)")
  done <<<"$gpu_packages"
  ((${#missing[@]} == 0)) || die "missing on this machine: $(printf '%s, ' "${missing[@]}" | sed 's/, $//')" \
    "Where there is a network: scripts/gpu-check --pack DIR; then here: scripts/gpu-check --packages DIR."
}

build_gpu() {
  local generator=()
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  run_step "configuring" "$build_folder/configure.log" cmake -S "$spillway_root" -B "$build_folder" "${generator[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DSPILLWAY_MPI=OFF -DSPILLWAY_EXAMPLES=OFF -DSPILLWAY_BENCHMARKS=OFF \
    "-DSPILLWAY_TORCH=$torch_folder" "-DCMAKE_PREFIX_PATH=$build_folder/deps/usr" ||
    die "CMake could not configure; whole log: $build_folder/configure.log"
  grep -q '^-- CUDA for libspillway_cuda' "$build_folder/configure.log" ||
    die "there are no CUDA 13 headers and libraries beside torch or in /usr/local/cuda"
  run_step "building" "$build_folder/build.log" cmake --build "$build_folder" -j "$(nproc)" \
    --target spillway spillway_cuda core_cuda_device_test swap_core_test swap_gpu_test ddl_gpu_test runtime_gpu_test ||
    die "the build failed; whole log: $build_folder/build.log"
}

require_gpu() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null || true)
  [[ -n $gpus ]] || die "no GPU here: nvidia-smi -L names none" "--build-only ends after the build."
  say "$gpus"
}

run_gpu_tests() {
  local test skipped
  # Unpacked libraries find each other; the system's own come first where it has them.
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$build_folder/deps/usr/lib/$(uname -m)-linux-gnu
  export LD_LIBRARY_PATH
  for test in core_cuda_device_test swap_core_test swap_gpu_test ddl_gpu_test runtime_gpu_test; do
    run_step "$test" "$out/$test.log" "$build_folder/tests/$test" || die "$test failed; whole log: $out/$test.log"
    skipped=$(grep -c '^\[  SKIPPED \] .*(' "$out/$test.log" || true)
    printf '    %s; %s skipped\n' "$(grep -E '^\[==========\] .* ran' "$out/$test.log")" "$skipped"
  done
  ! grep -qE '^\[  SKIPPED \] Gpu(Run)?Test' "$out"/{swap,ddl,runtime}_gpu_test.log ||
    die "there is a GPU, but its tests were skipped; see $out/{swap,ddl,runtime}_gpu_test.log"
}

# bench_gpu ENGINE JSON ARGUMENT…: its rows, also at the end of the table.
bench_gpu() {
  local engine=$1 json=$2
  shift 2
  printf '%s\n' "--engine $engine" | tee -a "$out/paging_cuda.txt"
  "$build_folder/bin/spillway" bench paging --device cuda --engine "$engine" "$@" --model unet3d --edge "$edge" \
    --filters "$filters" --steps "$steps" --json "$json" 2>"$out/bench_$engine.log" | tee -a "$out/paging_cuda.txt"
}

run_gpu_bench() {
  say "unet3d, edge $edge, $filters filters, on the GPU"
  : >"$out/paging_cuda.txt"
  bench_gpu gate "$out/paging_cuda.json" --peers || die "the benchmark failed: $(tail -n 3 "$out/bench_gate.log")"
  if bench_gpu unified "$out/paging_cuda_unified.json"; then
    say "results: $out/paging_cuda.json, $out/paging_cuda_unified.json; the table: $out/paging_cuda.txt"
  elif grep -q 'no Unified Memory' "$out/bench_unified.log"; then
    say "no unified engine on this GPU: $(grep 'no Unified Memory' "$out/bench_unified.log" | tail -n 1)"
    say "results: $out/paging_cuda.json"
  else
    die "the benchmark of the unified engine failed: $(tail -n 3 "$out/bench_unified.log")"
  fi
}
