#!/usr/bin/env bash
# consumer_test.sh CMAKE BUILD PROJECT EXAMPLES [CXX_FLAGS]: installs BUILD into a temporary prefix, makes PROJECT and some of
# EXAMPLES with it, and runs what it made and what was installed.
set -euo pipefail
cmake=$1 build=$2 project=$3 examples=$4 flags=${5:-}

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { tail "$work/install.log"; exit 1; }
"$cmake" -G Ninja -S "$project" -B "$work/build" "-DCMAKE_PREFIX_PATH=$work/prefix" "-DCMAKE_CXX_FLAGS=$flags" \
  "-DEXAMPLES=$examples" \
  -DCMAKE_BUILD_TYPE=Release
"$cmake" --build "$work/build"
"$work/build/consumer"
"$work/build/torch_consumer"
"$work/build/allreduce_alone"
for program in "$work/prefix/bin/"*; do
  [[ ! -x $program ]] || "$program" --help >/dev/null
done
echo "the consumer ran against $(find "$work/prefix/include/spillway" -name '*.h' | wc -l) installed headers"
