# shellcheck shell=bash disable=SC2034,SC2154  # one file sets what another reads
# Environments of Python that have torch's packages and others beside: once per user, shared by all clones. Torch's own
# environment stays as it is, because programs of other clones use it.

# _python_of_torch: prints torch's own interpreter, where torch is an environment's. Where that one does not run here, as
# after its removal, another of the same version that can make environments.
_python_of_torch() {
  local version python
  version=$(basename -- "$(cd -- "$torch_folder/../.." && pwd -P)")
  [[ $version == python3.* ]] || return
  for python in "$torch_folder/../../../../bin/python" "$version" "/usr/bin/$version"; do
    ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || { echo "$python" && return; }
  done
  return 1
}

# _make_python_home HOME: an environment beside torch's.
_make_python_home() {
  local home=$1 torch_python site
  if ! torch_python=$(_python_of_torch); then
    say "'$torch_folder' is not of an environment of Python, or that Python is gone"
    return 1
  fi
  rm -rf -- "$home.part" && "$torch_python" -m venv "$home.part" || return
  site=$("$home.part/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
  (cd -- "$torch_folder/.." && pwd -P) >"$site/torch.pth"
  rm -rf -- "$home" && mv -- "$home.part" "$home"
}

# _pip_install PYTHON ARGUMENT…
_pip_install() {
  unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONPATH PYTHONHOME
  local python=$1
  shift
  "$python" -m pip install --no-input --progress-bar off --disable-pip-version-check "$@"
}

# _install_python_packages LOG STAMP LOCK…: installs what the locks list (scripts/locks). Torch is there already.
_install_python_packages() {
  local log=$1 stamp=$2 lock options=()
  [[ ! -e $stamp ]] || return 0  # another run has just done it
  for lock in "${@:3}"; do [[ $lock == volumes ]] || options+=(-r "$locks/$lock.txt"); done
  run_step "installing with pip what scripts/locks lists for: ${*:3}" "$log" \
    _pip_install "$python" --require-hashes "${options[@]}" || return
  if [[ $3 == volumes ]]; then
    run_step "installing nilearn, for its volumes" "$log" \
      _pip_install "$python" --require-hashes --no-deps -r "$locks/volumes.txt" || return
  fi
  : >"$stamp"
}

# ensure_python demo|test|lint: sets python, an interpreter that has torch and the packages for that. Returns 1 where pip
# fails. Lint has an environment of its own, because mypy would read the types of other packages.
ensure_python() {
  local what=$1 name=python wanted=(volumes demo) stamp
  case $what in
    test) wanted+=(tests) ;;
    lint) name=lint wanted=(lint) ;;
  esac
  python_home=$spillway_cache/$name-for-$(printf '%s' "$torch_folder" | cksum | cut -d' ' -f1)
  python=$python_home/bin/python
  if ! "$python" -c 'import torch' >/dev/null 2>&1; then
    with_lock "$python_home.lock" "making an environment" _make_python_home "$python_home" || return
  fi
  stamp=$python_home/$(cd -- "$locks" && cat -- "${wanted[@]/%/.txt}" | cksum | cut -d' ' -f1).installed
  [[ -e $stamp ]] ||
    with_lock "$python_home.lock" "installing Python packages" \
      _install_python_packages "$spillway_cache/log/$name.log" "$stamp" "${wanted[@]}"
}

# install_wheel: builds the wheel of this clone, and installs it beside torch.
install_wheel() {
  local log=$spillway_root/build/wheel.log
  export CMAKE_CXX_COMPILER_LAUNCHER=$spillway_root/scripts/lib/compiler_launcher CMAKE_BUILD_PARALLEL_LEVEL
  CMAKE_BUILD_PARALLEL_LEVEL=$(build_jobs)
  run_step "building the wheel and installing it" "$log" \
    _pip_install "$python" --no-deps --force-reinstall "$spillway_root" || die "pip could not build the wheel; whole log: $log"
}
