# shellcheck shell=bash disable=SC2154  # one file sets what another reads
# A minimal Debian 12 root, made once, and runs in an overlay over it.

# _package_source: prints where this machine's apt takes Debian from.
_package_source() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    awk '/^(URIs:|deb )/ { for (i = 1; i <= NF; i++) if ($i ~ /^(https?|file):/) { print $i; exit } }'
}

# make_bare_root FOLDER: does nothing when it is there already.
make_bare_root() {
  local source
  [[ ! -d $1 ]] || return 0
  source=$(_package_source)
  [[ -n $source ]] || die "apt's sources name no place to take Debian from"
  command -v debootstrap >/dev/null || run_step "installing debootstrap" "$1.log" bash -c 'apt-get -q update && apt-get -q -y install debootstrap' ||
    die "could not install debootstrap; whole log: $1.log"
  rm -rf --one-file-system -- "$1.part"
  run_step "making a minimal Debian 12" "$1.log" debootstrap --variant=minbase --include=git,ca-certificates bookworm "$1.part" "$source" ||
    die "debootstrap failed; whole log: $1.log"
  mv -- "$1.part" "$1"
}

# _mount_bare_root BASE WORK: an overlay whose changes go to WORK, with the devices that programs expect.
_mount_bare_root() {
  local root=$2/root device
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"  # hwloc reads the machine there
  mount -t tmpfs -o mode=755 dev "$root/dev"
  mkdir -- "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs shm "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
  for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  for device in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${device#*:}" "$root/dev/${device%:*}"; done
  ln -s pts/ptmx "$root/dev/ptmx"
}

# _lend_package_sources ROOT: how this machine reaches its packages, and whom it trusts; nothing else of it.
_lend_package_sources() {
  local file
  for file in /etc/apt /etc/pip.conf /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts; do
    [[ -e $file ]] || continue
    rm -rf --one-file-system -- "${1:?}$file"
    mkdir -p -- "$1$(dirname -- "$file")"
    cp -aL -- "$file" "$1$file"
  done
}

# run_in_bare_root BASE WORK WITH_CACHE COMMAND…: ends the process with the command's status. The mounts end with its namespace.
run_in_bare_root() {
  local base=$1 work=$2 with_cache=$3 settings variable
  shift 3
  _mount_bare_root "$base" "$work"
  _lend_package_sources "$work/root"
  git clone --quiet "$spillway_root" "$work/root/root/spillway"
  settings=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "TERM=${TERM:-dumb}")
  for variable in SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT PIP_INDEX_URL {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY; do
    [[ -z ${!variable:-} ]] || settings+=("$variable=${!variable}")
  done
  if [[ -n $with_cache ]]; then
    # At the same path, because the compiler cache knows torch's headers by theirs.
    mkdir -p -- "$work/root$spillway_cache"
    mount -t overlay overlay -o "lowerdir=$spillway_cache,upperdir=$work/cache-upper,workdir=$work/cache-work" "$work/root$spillway_cache"
    settings+=("SPILLWAY_CACHE=$spillway_cache")
  fi
  # shellcheck disable=SC2016  # the inner shell expands it
  exec chroot "$work/root" env -i "${settings[@]}" bash -c 'cd ~/spillway && exec "$@"' bare "$@"
}
