# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# LibTorch, from the torch wheel, once per user: a virtual environment in the cache folder that every clone shares.
# A stamp, written last, says that it is whole; a marker, written first, that an installation of ours began.

torch_version=2.11.0
torch_home=$spillway_cache/torch-$torch_version
torch_stamp=$torch_home/.spillway-complete
torch_marker=$torch_home/.spillway-installing
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

_torch_folder() {
  local folder
  for folder in "$torch_home"/lib/python3*/site-packages/torch; do
    [[ -d $folder ]] && echo "$folder" && return
  done
  return 1
}

# torch_ready: is there a LibTorch already (the user's or the cache's)?
torch_ready() {
  [[ -n ${SPILLWAY_TORCH:-} ]] && return
  local folder
  [[ -e $torch_stamp && $(head -n 1 "$torch_stamp") == "$torch_key" && -x $torch_home/bin/python ]] &&
    folder=$(_torch_folder) && [[ -z $(torch_fault "$folder") ]]
}

_write_stamp() {
  printf '%s\n%s\n' "$torch_key" "$("$torch_home/bin/python" --version)" >"$torch_stamp.part"
  mv -- "$torch_stamp.part" "$torch_stamp"
  rm -f -- "$torch_marker"
}

# An environment that someone made by hand is as good as ours, if it is whole.
_adopt_torch() {
  local folder
  [[ ! -e $torch_marker && -x $torch_home/bin/python ]] && folder=$(_torch_folder) && [[ -z $(torch_fault "$folder") ]] &&
    "$torch_home/bin/python" -c "import numpy, torch; assert torch.__version__.split('+')[0] == '$torch_version'" \
      >/dev/null 2>&1 && _write_stamp
}

_pip_install_torch() {
  unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONPATH PYTHONHOME
  "$1" -m venv "$torch_home" &&
    TMPDIR=$torch_home/tmp "$torch_home/bin/python" -m pip install --no-cache-dir --no-input --progress-bar off \
      --disable-pip-version-check "torch==$torch_version" numpy &&
    "$torch_home/bin/python" -c 'import numpy, torch'
}

_install_torch() {
  local python log=$spillway_cache/log/torch.log folder fault what
  if torch_ready || _adopt_torch; then return; fi  # another run has just done it
  python=$(pick_python) || die "no Python 3.10 or newer that can make virtual environments" "apt-get install python3 python3-venv"
  if [[ -e $torch_home ]]; then
    say "torch in '$torch_home' is half-finished or not for this machine: starting again"
    rm -rf -- "$torch_home"
  fi
  need_space "$spillway_cache" "${SPILLWAY_CACHE_GB:-8}" "torch $torch_version" SPILLWAY_CACHE_GB
  mkdir -p -- "$torch_home/tmp"
  : >"$torch_marker"
  if ! run_step "installing torch $torch_version and numpy with pip (about 2.7 GB to fetch, once for all clones)" "$log" \
    _pip_install_torch "$python"; then
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
  folder=$(_torch_folder) || die "pip succeeded, but there is no torch below '$torch_home'" "Whole log: $log"
  fault=$(torch_fault "$folder")
  [[ -z $fault ]] || die "$fault" "Whole log: $log"
  _write_stamp
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
  torch_ready || with_lock "$torch_home.lock" "installing torch" _install_torch
  torch_folder=$(_torch_folder)
}
