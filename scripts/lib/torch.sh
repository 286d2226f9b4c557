# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# LibTorch, from the torch wheel, once per user: a virtual environment in the cache folder that every clone shares.
# A marker, written first, says that an installation began; a stamp, written last, that it is whole. Only a folder with a
# marker is ever removed, because programs of other clones may be using any other. What cannot be used is left alone, and
# the installation takes the next free name: torch-2.11.0, torch-2.11.0-2, torch-2.11.0-3, …

locks=$spillway_root/scripts/locks
torch_version=$(sed -n 's/^torch==//p' "$locks/torch.in")
torch_lock=$spillway_cache/torch-$torch_version.lock
torch_key="torch $torch_version and numpy for $(uname -m)"

# torch_fault FOLDER: prints what keeps FOLDER from being the LibTorch that we need; nothing when it is.
torch_fault() {
  local version=$1/include/torch/headeronly/version.h found
  if [[ ! -d $1 ]]; then echo "there is no folder '$1'"
  elif [[ ! -e $1/include/ATen/ATen.h ]]; then echo "'$1' has no include/ATen/ATen.h"
  elif [[ ! -e $1/lib/libtorch_cpu.so ]]; then echo "'$1' has no lib/libtorch_cpu.so"
  elif [[ ! -e $version ]]; then echo "'$1' has no include/torch/headeronly/version.h: not torch ${torch_version%.*}"
  else
    found=$(sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR) ([0-9]+).*/\2/p' "$version" | paste -sd.)
    [[ $found == "${torch_version%.*}" ]] || echo "'$1' is torch ${found:-of an unknown version}, not ${torch_version%.*}"
  fi
}

# _torch_in HOME: prints the torch folder inside the virtual environment HOME.
_torch_in() {
  local folder
  for folder in "$1"/lib/python3*/site-packages/torch; do
    [[ -d $folder ]] && echo "$folder" && return
  done
  return 1
}

# _is_whole HOME: is HOME a finished installation for this kind of machine? Its Python need not run here, because the
# build takes headers and libraries alone.
_is_whole() {
  local folder
  [[ -e $1/.spillway-complete && $(head -n 1 "$1/.spillway-complete") == "$torch_key" ]] &&
    folder=$(_torch_in "$1") && [[ -z $(torch_fault "$folder") ]]
}

_torch_homes() {
  local home
  for home in "$spillway_cache/torch-$torch_version" "$spillway_cache/torch-$torch_version"-[0-9]*; do
    [[ ! -d $home ]] || echo "$home"
  done
}

# _torch_folder: prints the torch folder of the first whole installation in the cache.
_torch_folder() {
  local home
  while IFS= read -r home; do
    if _is_whole "$home"; then
      _torch_in "$home"
      return
    fi
  done < <(_torch_homes)
  return 1
}

# torch_ready: is there a LibTorch already (the user's or the cache's)?
torch_ready() {
  [[ -n ${SPILLWAY_TORCH:-} ]] || _torch_folder >/dev/null
}

# torch_python_is_gone: is the LibTorch of an environment whose interpreter is no longer there?
torch_python_is_gone() {
  local python
  python=${SPILLWAY_TORCH:-$(_torch_folder)}/../../../../bin/python
  [[ -L $python && ! -x $python ]]
}

_write_stamp() {
  printf '%s\n%s\n' "$torch_key" "$("$1/bin/python" --version)" >"$1/.spillway-complete.part"
  mv -- "$1/.spillway-complete.part" "$1/.spillway-complete"
  rm -f -- "$1/.spillway-installing"
}

# _adopt_torch: an environment without a stamp that someone made by hand is as good as ours, if it is whole.
_adopt_torch() {
  local home folder
  while IFS= read -r home; do
    [[ ! -e $home/.spillway-complete && ! -e $home/.spillway-installing && -x $home/bin/python ]] &&
      folder=$(_torch_in "$home") && [[ -z $(torch_fault "$folder") ]] &&
      "$home/bin/python" -c "import numpy, torch; assert torch.__version__.split('+')[0] == '$torch_version'" \
        >/dev/null 2>&1 && _write_stamp "$home" && return
  done < <(_torch_homes)
  return 1
}

# _new_torch_home: prints the first name that is free, or whose installation never ended.
_new_torch_home() {
  local home=$spillway_cache/torch-$torch_version number=1
  while [[ -e $home && ! -e $home/.spillway-installing ]]; do
    number=$((number + 1))
    home=$spillway_cache/torch-$torch_version-$number
  done
  echo "$home"
}

# _pip_install_torch PYTHON HOME
_pip_install_torch() {
  unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONPATH PYTHONHOME
  "$1" -m venv "$2" &&
    TMPDIR=$2/tmp "$2/bin/python" -m pip install --no-cache-dir --no-input --progress-bar off \
      --disable-pip-version-check --require-hashes -r "$locks/torch.txt" &&
    "$2/bin/python" -c 'import numpy, torch'
}

_install_torch() {
  local python log=$spillway_cache/log/torch.log folder fault what torch_home
  if torch_ready || _adopt_torch; then return; fi  # another run has just done it
  python=$(pick_python) || die "no Python 3.10 or newer that can make virtual environments" "apt-get install python3 python3-venv"
  torch_home=$(_new_torch_home)
  if [[ -e $torch_home ]]; then
    say "the installation of torch in '$torch_home' never ended: starting again"
    rm -rf -- "$torch_home"
  fi
  need_space "$spillway_cache" "${SPILLWAY_CACHE_GB:-8}" "torch $torch_version" SPILLWAY_CACHE_GB
  mkdir -p -- "$torch_home/tmp"
  : >"$torch_home/.spillway-installing"
  if ! run_step "installing torch $torch_version and numpy with pip (about 2.7 GB to fetch, once for all clones)" "$log" \
    _pip_install_torch "$python" "$torch_home"; then
    what="pip could not install torch==$torch_version and numpy"
    if grep -qE 'NewConnectionError|Temporary failure|ConnectTimeout|Network is unreachable|No matching distribution|ReadTimeout|Connection (refused|reset|broken)' "$log"; then
      what="no network, or no such package in reach: $what"
    elif grep -qE 'No space left|Disk quota' "$log"; then
      what="no space left in '$spillway_cache': $what"
    fi
    die "$what into '$torch_home'" "Whole log: $log" \
      "To go on offline, install torch $torch_version elsewhere (or unpack libtorch) and set SPILLWAY_TORCH to the folder that holds" \
      "its include/ and lib/. A second run of this script starts this step again."
  fi
  rm -rf -- "$torch_home/tmp"
  folder=$(_torch_in "$torch_home") || die "pip succeeded, but there is no torch below '$torch_home'" "Whole log: $log"
  fault=$(torch_fault "$folder")
  [[ -z $fault ]] || die "$fault" "Whole log: $log"
  _write_stamp "$torch_home"
}

# ensure_torch: sets torch_folder (include/ and lib/ lie in it), installing torch when there is none.
ensure_torch() {
  if [[ -n ${SPILLWAY_TORCH:-} ]]; then
    torch_folder=$SPILLWAY_TORCH
    [[ $torch_folder == /* ]] || torch_folder=$PWD/$torch_folder
    local fault
    fault=$(torch_fault "$torch_folder")
    [[ -z $fault ]] || die "SPILLWAY_TORCH: $fault" \
      "It names the folder that holds include/ and lib/: an unpacked libtorch, or site-packages/torch of an environment." \
      "Unset it to have torch $torch_version installed in '$spillway_cache'."
    return
  fi
  torch_ready || with_lock "$torch_lock" "installing torch" _install_torch
  torch_folder=$(_torch_folder)
}
