#!/usr/bin/env bash
# includes_test.sh ROOT: the tree's includes go downward; and the check fails when a wrong one is planted in a copy.
set -euo pipefail
root=$1
check=$root/tests/scripts/check_includes.sh
bash "$check" "$root"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/tree"
cp -r "$root"/{core,swap,ddl,kfac,runtime,tools} "$work/tree/"

# refused FILE INCLUDE: a FILE with this include must be found, by name.
refused() {
  local file=$work/tree/$1
  printf '#include %s\n' "$2" >"$file"
  if bash "$check" "$work/tree" >"$work/out"; then
    echo "not found: $1 with #include $2"
    exit 1
  fi
  grep -q "^$1:1: " "$work/out" || { echo "not named: $1 with #include $2"; cat "$work/out"; exit 1; }
  rm -- "$file"
}
# allowed FILE INCLUDE: no complaint.
allowed() {
  local file=$work/tree/$1
  printf '#include %s\n' "$2" >"$file"
  bash "$check" "$work/tree" >"$work/out" || { echo "wrongly refused: $1 with #include $2"; cat "$work/out"; exit 1; }
  rm -- "$file"
}

refused core/planted.h '"swap/session.h"'
refused core/planted.cpp '<ddl/comm/communicator.h>'
refused swap/planted.h '"kfac/factor.h"'
refused swap/planted.cpp '"ddl/comm/communicator.h"'
refused ddl/planted.cpp '"swap/session.h"'
refused ddl/planted.h '"kfac/factor.h"'
refused kfac/planted.cpp '"swap/session.h"'
refused kfac/planted.h '"runtime/trainer.h"'
refused runtime/planted.cpp '"tools/cli/command.h"'
refused swap/planted.cpp '"../kfac/factor.h"'
refused runtime/planted.cpp '<mpi.h>'
refused ddl/planted.cpp '<mpi.h>'
refused runtime/planted.cpp '<hwloc.h>'
refused core/planted.cpp '<hwloc/helper.h>'
refused ddl/topology_planted.cpp '<hwloc.h>'
refused swap/planted.cpp '<cuda_runtime_api.h>'
refused swap/planted.h '<c10/cuda/CUDAStream.h>'
refused kfac/planted.cpp '<cusolverDn.h>'
refused ddl/planted.cpp '<nccl.h>'
allowed runtime/planted.cpp '"swap/session.h"'
allowed kfac/planted.cpp '"ddl/comm/communicator.h"'
allowed tools/planted.cpp '"runtime/trainer.h"'
allowed ddl/planted_mpi.cpp '<mpi.h>'
allowed core/topology_planted.cpp '<hwloc.h>'
allowed kfac/planted_cuda.cpp '<cusolverDn.h>'
allowed core/planted.cpp '<ATen/core/Tensor.h>'
echo "planted includes: 19 refused, 7 allowed"
