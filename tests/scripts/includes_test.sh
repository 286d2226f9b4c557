#!/usr/bin/env bash
# includes_test.sh ROOT: the tree's includes go downward; and the check fails when a wrong one is planted in a copy.
set -euo pipefail
root=$1
check=$root/tests/scripts/check_includes.py
python3 -B "$check" "$root"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/tree"
cp -r "$root"/{core,swap,ddl,kfac,pipe,runtime,tools,benchmarks,python} "$work/tree/"

# refused FILE INCLUDE: a FILE with this include must be found, by name.
refused() {
  local file=$work/tree/$1
  printf '#include %s\n' "$2" >"$file"
  if python3 -B "$check" "$work/tree" >"$work/out"; then
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
  python3 -B "$check" "$work/tree" >"$work/out" || { echo "wrongly refused: $1 with #include $2"; cat "$work/out"; exit 1; }
  rm -- "$file"
}

# Rooms.
refused core/planted.h '"swap/session.h"'
refused core/planted.cpp '<ddl/comm/communicator.h>'
refused swap/planted.h '"kfac/kfac.h"'
refused swap/planted.cpp '"ddl/comm/communicator.h"'
refused ddl/comm/planted.cpp '"swap/session.h"'
refused ddl/comm/planted.h '"kfac/kfac.h"'
refused kfac/planted.cpp '"swap/session.h"'
refused kfac/planted.h '"runtime/training/train.h"'
refused runtime/training/planted.cpp '"tools/cli/command.h"'
refused swap/planted.cpp '"../kfac/kfac.h"'
refused pipe/planted.cpp '"kfac/kfac.h"'
refused runtime/training/planted.cpp '"benchmarks/commands/stock.h"'
refused tools/cli/planted.cpp '"benchmarks/commands/commands.h"'
refused python/bindings/planted.cpp '"tools/cli/command.h"'
# Folders.
refused swap/pager/planted.h '"swap/gate/session_state.h"'
refused swap/windows/planted.h '"swap/pager/pager.h"'
refused core/memory/planted.cpp '"core/device/device.h"'
refused runtime/data/planted.h '"runtime/training/train.h"'
refused ddl/planted.h '"ddl/comm/communicator.h"'
# Libraries.
refused runtime/training/planted.cpp '<mpi.h>'
refused ddl/comm/planted.cpp '<mpi.h>'
refused runtime/training/planted.cpp '<hwloc.h>'
refused core/planted.cpp '<hwloc/helper.h>'
refused ddl/topology/planted.cpp '<hwloc.h>'
refused swap/planted.cpp '<cuda_runtime_api.h>'
refused swap/planted.h '<c10/cuda/CUDAStream.h>'
refused kfac/planted.cpp '<cusolverDn.h>'
refused ddl/nccl/planted.cpp '<nccl.h>'
allowed runtime/training/planted.cpp '"swap/session.h"'
allowed kfac/comm/planted.cpp '"ddl/comm/communicator.h"'
allowed benchmarks/commands/planted.cpp '"runtime/training/train.h"'
allowed ddl/comm/planted_mpi.cpp '<mpi.h>'
allowed core/host/planted.cpp '<hwloc.h>'
allowed kfac/inverse/planted_cuda.cpp '<cusolverDn.h>'
allowed core/planted.cpp '<ATen/core/Tensor.h>'
# Public headers.
sed -i 's/^#include "core\/bytes.h"$/&\n#include "core\/json_text.h"/' "$work/tree/swap/gate/session_options.h"
if python3 -B "$check" "$work/tree" >"$work/out"; then
  echo "not found: a public header that includes one that is not installed"
  exit 1
fi
grep -q '^swap/gate/session_options.h:[0-9]*: core/json_text.h is not installed' "$work/out"
cp "$root/swap/gate/session_options.h" "$work/tree/swap/gate/"
for i in $(seq 30); do : >"$work/tree/swap/optim/planted_$i.h"; done
if python3 -B "$check" "$work/tree" >"$work/out"; then
  echo "not found: a folder of more than 30 files"
  exit 1
fi
grep -q '^swap/optim:1: ' "$work/out"
echo "planted includes: 28 refused, 7 allowed"
