# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# What the build needs from the distribution. A look for a command or a header decides what is missing, so whatever came
# another way (pyenv, /usr/local) counts too; Debian's package manager is touched only when something is.

spillway_packages='
g++                 command g++
cmake               command cmake
ninja-build         command ninja
ccache              command ccache
python3             command python3
python3-venv        venv    -
python3-dev         pyheaders -
libopenmpi-dev      command mpicxx
openmpi-bin         command mpirun
libhwloc-dev        header  hwloc.h
libxxhash-dev       header  xxhash.h
liburing-dev        header  liburing.h
libnifti-dev        header  nifti/nifti1_io.h
zlib1g-dev          header  zlib.h
libcli11-dev        header  CLI/CLI.hpp
nlohmann-json3-dev  header  nlohmann/json.hpp
libgtest-dev        header  gtest/gtest.h
libgmock-dev        header  gmock/gmock.h
libbenchmark-dev    header  benchmark/benchmark.h
libssl-dev          header  openssl/evp.h
ca-certificates     file    /etc/ssl/certs/ca-certificates.crt
util-linux          command flock
'

# What the preset `fuzz` needs besides.
spillway_fuzz_packages='clang               command clang++
libclang-rt-dev     fuzzer  -
'

# What a test needs besides, which is skipped without it.
spillway_test_packages='chromium            command chromium
'

_has_header() {
  local folder folders
  IFS=: read -r -a folders <<<"/usr/include:/usr/local/include:/usr/include/$(uname -m)-linux-gnu:${CPATH:-}"
  for folder in "${folders[@]}"; do
    [[ -n $folder && -e $folder/$1 ]] && return
  done
  return 1
}

# _first_python MODULES: prints the first Python for this torch (3.10 or newer) that has these modules.
_first_python() {
  local python
  for python in python3 /usr/bin/python3 python3.{14,13,12,11,10}; do
    if "$python" -c "import $1; sys.exit(sys.version_info < (3, 10))" >/dev/null 2>&1; then
      command -v "$python"
      return
    fi
  done
  return 1
}

# pick_python: prints a Python that can make a virtual environment for this torch.
pick_python() { _first_python 'sys, venv, ensurepip'; }

# _has_python_headers: are the headers there of the Python that makes torch's environment, or where torch is there
# already, and that Python cannot make one, of another?
_has_python_headers() {
  local python
  python=$(pick_python || _first_python sys) &&
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# _has_fuzzer: can clang link libFuzzer and the sanitizers?
_has_fuzzer() {
  clang++ -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - >/dev/null 2>&1 \
    <<<'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
}

missing_packages() {
  local package kind what
  while read -r package kind what; do
    case $kind in
      command) command -v "$what" >/dev/null ;;
      header) _has_header "$what" ;;
      file) [[ -e $what ]] ;;
      fuzzer) _has_fuzzer ;;
      pyheaders) _has_python_headers ;;
      # Only needed when torch has still to be installed, or the Python of its environment is gone.
      venv) { torch_ready && ! torch_python_is_gone; } || pick_python >/dev/null ;;
      *) true ;;
    esac || echo "$package"
  done <<<"$spillway_packages"
}

# The functions below run in the order: ensure_packages, _install_packages, _apt_install, _apt.
_apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 "$@"
}

_apt_install() {
  if _apt install --simulate --no-install-recommends "$@" >/dev/null 2>&1; then
    _apt install --no-install-recommends "$@" && return
    echo "The package lists may be old; fetching them again."
  fi
  # `update` succeeds when nothing could be fetched; the installation then says so.
  _apt update && _apt install --no-install-recommends "$@"
}

ensure_packages() {
  [[ -z $(missing_packages) ]] && return
  if command -v flock >/dev/null; then
    with_lock "$spillway_cache/setup.lock" "installing packages" _install_packages
  else
    _install_packages
  fi
}

# ensure_test_packages: the tests go on where there is no network, or are no rights to install.
ensure_test_packages() {
  (
    spillway_packages=$spillway_test_packages
    ensure_packages
  ) || say "chromium could not be installed: the test that looks at pages of reports is skipped"
}

_install_packages() {
  local missing list as_root=() log=$spillway_cache/log/apt.log hint
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0  # another run has just done it
  list=${missing[*]}
  if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    die "missing: $list" \
      "These are Debian's names, and this system has no apt-get: install its own packages for them, then run this again."
  fi
  if [[ $(id -u) != 0 ]]; then
    as_root=(sudo)
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; }; }; then
      die "missing: $list, and no rights to install them. As root:" "apt-get install --no-install-recommends $list"
    fi
  fi
  if ! run_step "installing ${#missing[@]} Debian packages: $list" "$log" _apt_install "${missing[@]}"; then
    hint="apt-get could not install: $list"
    if grep -qE 'Could not resolve|Temporary failure|Could not connect|Unable to connect|Network is unreachable|Failed to fetch' "$log"; then
      hint="no network: apt-get could not fetch: $list"
    fi
    die "$hint" "Whole log: $log. To go on offline, install them from your own mirror or medium, then run this again:" \
      "apt-get install --no-install-recommends $list"
  fi
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || die "still missing after apt-get: ${missing[*]}" "Whole log: $log"
}

ensure_tools_are_new_enough() {
  local version
  version=$(cmake --version | head -n 1 | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
  [[ $(printf '3.25\n%s\n' "$version" | sort -V | head -n 1) == 3.25 ]] ||
    die "cmake $version ($(command -v cmake)) is too old: 3.25 or newer is needed (Debian 12 has 3.25)"
  version=$(g++ -dumpversion)
  ((${version%%.*} >= 11)) || die "g++ $version is too old for C++20: 11 or newer is needed (Debian 12 has 12.2)"
}
