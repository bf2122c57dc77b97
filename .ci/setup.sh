# shellcheck shell=sh disable=SC2034
# Sourced by quickstart.sh and check.sh, in the top folder: installs what is missing on Debian and
# Ubuntu, configures and builds.

packages_build="gcc libc6-dev make autoconf automake pkg-config libopenmpi-dev openmpi-bin \
libhdf5-openmpi-dev libhwloc-dev libopenblas-dev
  libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libpapi-dev"
# Essential tests need the first of these.
packages_essential="libcmocka-dev hdf5-tools python3 python3-h5py python3-jinja2 iproute2 procps"
packages_check="$packages_essential slurmctld slurmd slurm-client munge groff-base zsh fish zstd
  python3-jsonschema python3-yaml lmod python3-sphinx python3-myst-parser"
packages_mpich="mpich libmpich-dev libhdf5-mpich-dev"
# The compiler of CUDA needs that of C++.
cuda=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc | sed 's,/bin/nvcc$,,')
test -z "$cuda" || packages_build="$packages_build g++"

say() { printf '\n== %s\n' "$*"; }
stop() {
  printf '%s\n' "$*" >&2
  exit 1
}

# install_missing PACKAGE...: where nothing can be installed, prints the list and stops.
install_missing() {
  missing=
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing="$missing $package"
  done
  test -n "$missing" || return 0
  command -v apt-get >/dev/null ||
    stop "This is neither Debian nor Ubuntu. Install the counterparts of these packages, then \
./configure && make:" "$@"
  as_root=
  if test "$(id -u)" != 0; then
    as_root=sudo
    sudo -n true 2>/dev/null || { command -v sudo >/dev/null && test -t 0; } ||
      stop "Missing packages, and no way to become root here. As root: apt-get install$missing"
  fi
  say "Installing$missing"
  # shellcheck disable=SC2086 # a list of words
  { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get \
    install -y --no-install-recommends $missing; } ||
    stop "apt-get failed. Install by hand: apt-get install$missing"
}

# build FOLDER [ARGUMENT-OF-CONFIGURE...]: a folder that is configured already keeps its
# configuration.
build() {
  folder=$1
  shift
  say "Building in $folder/"
  test -x configure || autoreconf -fi
  mkdir -p "$folder"
  test -f "$folder/Makefile" || (cd "$folder" && ../configure "$@")
  make -C "$folder" -j "$(nproc)"
}

# Without these variables Open MPI refuses to start as root.
if test "$(id -u)" = 0; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
