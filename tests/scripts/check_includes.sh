#!/usr/bin/env bash
# check_includes.sh ROOT: prints every include that goes upward or sideways between rooms, or brings MPI, hwloc or CUDA to a
# file that is not theirs. Fails when there is one, or when there was nothing to look at.
set -euo pipefail
export LC_ALL=C.UTF-8
cd -- "$1"

declare -A may_include=(
  [core]='core'
  [swap]='core swap'
  [ddl]='core ddl'
  [kfac]='core ddl kfac'
  [runtime]='core ddl kfac swap runtime'
  [tools]='core ddl kfac swap runtime tools'
)
cuda='^((cuda|cublas|cusolver|cusparse|curand|cufft|cupti|nccl|nvml|nvToolsExt|nvtx)[^/]*\.(h|hpp|cuh)|(ATen|c10)/(native/)?cuda/.*|torch/csrc/cuda/.*|nvtx3/.*)$'

looked=0 wrong=0
complain() {
  printf '%s: %s\n' "$1" "$2"
  wrong=$((wrong + 1))
}

while IFS=: read -r file number text; do
  looked=$((looked + 1))
  room=${file%%/*}
  [[ $text =~ [\<\"]([^\>\"]+)[\>\"] ]] || continue  # a macro
  header=${BASH_REMATCH[1]}
  target=${header%%/*}
  if [[ $header == ../* || $header == */../* ]]; then
    complain "$file:$number" "\"$header\" climbs; write \"room/file.h\""
  elif [[ $header == */* && -n ${may_include[$target]:-} && " ${may_include[$room]} " != *" $target "* ]]; then
    complain "$file:$number" "$room may not include $target ($header); it may include: ${may_include[$room]}"
  fi
  if [[ $header == mpi.h && $file != ddl/*mpi*.cpp ]]; then
    complain "$file:$number" "<mpi.h> belongs in ddl/*mpi*.cpp"
  fi
  if [[ $header == hwloc.h || $header == hwloc/* ]] && [[ $file != core/topology*.cpp ]]; then
    complain "$file:$number" "<$header> belongs in core/topology*.cpp"
  fi
  if [[ $header =~ $cuda && $file != *_cuda.cpp && $file != *.cu ]]; then
    complain "$file:$number" "<$header> belongs in a *_cuda.cpp or *.cu file"
  fi
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include\>' --include='*.h' --include='*.hpp' --include='*.cpp' --include='*.cu' \
  --include='*.cuh' core swap ddl kfac runtime tools)

((looked > 0)) || complain "$PWD" "no includes found"
printf '%d includes looked at, %d wrong\n' "$looked" "$wrong"
((wrong == 0))
