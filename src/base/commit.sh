#!/bin/sh
# src/base/commit.sh SOURCE HEADER: write the commit of a source tree as a C header, for make. A
# header that is right already keeps its time, so make builds nothing again.
set -eu
test $# -eq 2 || { echo "usage: src/base/commit.sh SOURCE HEADER" >&2; exit 2; }
source=$1 header=$2

# make dist writes the first one. A folder above an unpacked archive may be another checkout.
if test -e "$source/commit.txt"; then
  commit=$(cat "$source/commit.txt")
elif test -e "$source/.git"; then
  commit=$(GIT_OPTIONAL_LOCKS=0 git -C "$source" describe --always --dirty --abbrev=12 \
    --exclude='*' 2> /dev/null) || commit=unknown
else
  commit=unknown
fi
# git may refuse to read a checkout of another user, such as make install by root.
test "$commit" != unknown || ! test -e "$header" || exit 0
line="#define BUILD_COMMIT \"$commit\""
test -e "$header" && test "$(cat "$header")" = "$line" && exit 0
printf '%s\n' "$line" > "$header.part"
mv "$header.part" "$header"
