#!/bin/sh
# .ci/fresh-root.sh [-s SUITE] [COMMAND [ARGUMENT...]]: runs COMMAND in a copy of the last commit,
# in a new and minimal root of this machine's Debian or Ubuntu release, or of the release SUITE. The
# root holds none of the packages that this machine happens to have, so COMMAND must install all
# that it needs. The exit code is that of COMMAND. Without COMMAND, the script only checks that such
# a root can be made. If it cannot, one line on standard output says why, and the exit code is 1.
#
# The processes and mounts of the root are in namespaces of their own. They end with this script,
# whatever ends it.
set -eu
cd "$(dirname "$0")/.."
root='' part='' job='' sources=''

# The first process in the namespaces. It stays, because it collects processes without a parent.
inside() {
  root=$1
  shift
  mount --bind "$root" "$root" # a namespace inside needs / to be a mount point
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount -t tmpfs tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for fd in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${fd%:*}" "$root/dev/${fd#*:}"; done
  # shellcheck disable=SC2016 # for the shell in there
  env -i --default-signal=INT,QUIT HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    TERM="${TERM:-dumb}" CI=true SLUICE_TEST_STRICT=1 \
    chroot "$root" sh -c 'cd /src && exec "$@"' sh "$@" </dev/null
}
if test "${1:-}" = --inside; then
  shift
  inside "$@"
  exit
fi

own=$(. /etc/os-release && echo "$VERSION_CODENAME")
suite=$own
if test "${1:-}" = -s; then
  suite=$2
  shift 2
fi
base=/var/cache/sluice/fresh-root-$suite.tar

cannot() {
  echo "$*"
  exit 1
}

# The namespaces' processes may outlive their first one by a moment.
leave() {
  trap '' INT TERM HUP
  test -z "$job" || kill -KILL "$job" 2>/dev/null || :
  rm -rf "$part" "$sources"
  test -n "$root" || return 0
  for _ in $(seq 100); do
    rm -rf --one-file-system "$root" 2>/dev/null && return
    sleep 0.1
  done
  echo "fresh-root.sh: $root could not be removed" >&2
}
trap leave EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# in_namespaces COMMAND...: in the background, because a shell heeds a signal only while it waits.
in_namespaces() {
  status=0
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$@" &
  job=$!
  wait $job || status=$?
  job=''
  return $status
}

# The base is complete as soon as it has its name.
make_base() {
  mkdir -p "${base%/*}"
  part=$(mktemp "$base.XXXXXX")
  sources=$(mktemp -d)
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources \
    /etc/apt/sources.list.d/ubuntu.sources; do
    test ! -f "$file" || sed "s/\<$own\>/$suite/g" "$file" >"$sources/${file##*/}"
  done
  mmdebstrap --quiet --variant=minbase --format=tar --include=ca-certificates "$suite" "$part" \
    "$sources"/* </dev/null >&2 &&
    mv "$part" "$base"
}

test "$(id -u)" = 0 || cannot "only root can mount one"
command -v apt-get >/dev/null || cannot "this is neither Debian nor Ubuntu"
test -e .git || cannot "this folder is no git checkout"
git rev-parse -q --verify HEAD >/dev/null 2>&1 || cannot "git shows no commit here"
in_namespaces sh -c 'mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt' 2>/dev/null ||
  cannot "namespaces or mounts are forbidden here"
(. .ci/setup.sh && install_missing mmdebstrap) >&2 || cannot "mmdebstrap cannot be installed"
# A base older than a day may be another release's by now.
test -n "$(find "$base" -mmin -1440 2>/dev/null)" || make_base || cannot "mmdebstrap failed"
check=no
test $# -gt 0 || {
  check=yes
  set -- true
}

root=$(mktemp -d /var/tmp/sluice-root.XXXXXX)
chmod 755 "$root"
tar -x -C "$root" -f "$base" --exclude='./dev/*'
cp -r /etc/apt/apt.conf.d "$root/etc/apt/"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mkdir "$root/src"
git archive HEAD | tar -x -C "$root/src"
in_namespaces sh .ci/fresh-root.sh --inside "$root" "$@" || {
  status=$?
  test $check = no || cannot "a mount that it needs is forbidden here"
  exit $status
}
