#!/bin/sh
# The modulefile that make install writes. Oracle: Lmod, after which `sluice` and its man page are
# those of the prefix.
. "${top_srcdir:?}/tests/need.sh"
lmod=${LMOD_CMD:-/usr/share/lmod/lmod/libexec/lmod}
test -x "$lmod" || lack Lmod
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
make -s install-modulefile prefix="$dir/prefix" > "$dir/out" 2>&1 || {
  cat "$dir/out" >&2
  exit 1
}
mkdir -p "$dir/prefix/bin"
ln -s "$SLUICE" "$dir/prefix/bin/sluice"
module() { eval "$("$lmod" sh "$@")"; }
HOME=$dir MODULEPATH=$dir/prefix/share/sluice/modulefiles
export HOME MODULEPATH

module load sluice
test "$(command -v sluice)" = "$dir/prefix/bin/sluice" || exit 1
case $MANPATH in "$dir/prefix/share/man"*) ;; *) exit 1 ;; esac
sluice --version | grep -qx "sluice ${LOADEDMODULES#sluice/}.*" || exit 1
module unload sluice
case :$PATH: in *":$dir/prefix/bin:"*) exit 1 ;; esac
make -s uninstall-modulefile prefix="$dir/prefix" > "$dir/out" || exit 1
test -z "$(find "$MODULEPATH" -type f)"
