#!/bin/sh
# src/base/commit.sh SOURCE HEADER: write the commit of a source tree, with its date, as a C header,
# for make. A header that is right already keeps its time, so make builds nothing again.
set -eu
test $# -eq 2 || { echo "usage: src/base/commit.sh SOURCE HEADER" >&2; exit 2; }
source=$1 header=$2 date=

# make dist writes the first one. A folder above an unpacked archive may be another checkout.
if test -e "$source/commit.txt"; then
  read -r commit date < "$source/commit.txt" || test -n "$commit"
elif test -e "$source/.git"; then
  commit=$(GIT_OPTIONAL_LOCKS=0 git -C "$source" describe --always --dirty --abbrev=12 \
    --exclude='*' 2> /dev/null) || commit=unknown
  date=$(git -C "$source" log -1 --format=%cs 2> /dev/null) || date=
else
  commit=unknown
fi
# git may refuse to read a checkout of another user, such as make install by root.
test "$commit" != unknown || ! test -e "$header" || exit 0
lines=$(printf '#define BUILD_COMMIT "%s"\n#define BUILD_DATE "%s"' "$commit" "$date")
test -e "$header" && test "$(cat "$header")" = "$lines" && exit 0
printf '%s\n' "$lines" > "$header.part"
mv "$header.part" "$header"
