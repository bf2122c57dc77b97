#!/bin/sh
# The commit in --version and in results. Oracles: git in the source tree and in a made-up one; the
# time of the header, because make builds again what is newer.
. "${top_srcdir:?}/tests/cli/common.sh"
make_data
make_deck

# commit_of TREE: what the header of a tree says.
commit_of() {
  sh "$top_srcdir/src/base/commit.sh" "$1" "$1.h" || die "no header of $1"
  sed -n 's/^#define BUILD_COMMIT "\(.*\)"$/\1/p' "$1.h"
}
says() {
  test "$(commit_of "$1")" = "$2" || die "the commit of $1 is '$(commit_of "$1")', not '$2'"
}

# dated TREE DATE
dated() {
  date=$(sed -n 's/^#define BUILD_DATE "\(.*\)"$/\1/p' "$1.h")
  test "$date" = "$2" || die "the date of $1 is '$date', not '$2'"
}

mkdir plain
says plain unknown
dated plain ''
if command -v git > git.path; then
  made() {
    git -C made -c user.name=a -c user.email=a@b "$@" > git.out 2>&1 || {
      cat git.out >&2; die "git $*"; }
  }
  git init -q made
  echo one > made/file
  made add file
  made commit -q -m one
  first=$(git -C made rev-parse --short=12 HEAD)
  says made "$first"
  dated made "$(git -C made log -1 --format=%cs)"
  # Equal headers stay, and so does what is built from them.
  touch -d '2001-01-01' made.h
  says made "$first"
  test "$(date -r made.h +%Y)" = 2001 || die "a header that is right is written again"
  made tag v9
  says made "$first"
  echo two > made/file
  says made "$first-dirty"
  made commit -q -a -m two
  second=$(git -C made rev-parse --short=12 HEAD)
  test "$second" != "$first" || die "two commits of one name"
  says made "$second"
  # git that fails, such as in a checkout of another user, does not change what is known.
  echo broken > made/.git/HEAD
  says made "$second"
  rm made.h
  says made unknown
  # An unpacked archive within a checkout.
  mkdir outer outer/inner
  git init -q outer
  echo 0123456789ab > outer/inner/commit.txt
  says outer/inner 0123456789ab
  dated outer/inner ''
  echo 0123456789ab 2001-02-03 > outer/inner/commit.txt
  says outer/inner 0123456789ab
  dated outer/inner 2001-02-03
  rm outer/inner/commit.txt outer/inner.h
  says outer/inner unknown
fi
fails 2 "usage: src/base/commit.sh SOURCE HEADER" sh "$top_srcdir/src/base/commit.sh" plain

# The program was built from this tree.
commit=$("$SLUICE" --version | sed -n 's/^  commit  *//p')
if test -e "$top_srcdir/commit.txt"; then
  test "$commit" = "$(cut -d ' ' -f 1 "$top_srcdir/commit.txt")" || die "--version says '$commit'"
elif test -e "$top_srcdir/.git" && git -C "$top_srcdir" rev-parse HEAD > head.txt 2>&1; then
  case $(cat head.txt) in
  "${commit%-dirty}"*) ;;
  *) die "--version says '$commit', but the commit is $(cat head.txt)" ;;
  esac
fi
test "${#commit}" -ge 7 || die "--version has no commit: '$commit'"
train 1 run run.steps=1
head -n 1 run/log.txt | grep -q "^sluice [0-9.]* ($commit) on " || die "the log has no commit"
"$SLUICE" bench tiny.yaml steps=1 warmup=0 results=bench.jsonl > bench.out 2>&1 ||
  { cat bench.out >&2; die "bench"; }
"$SLUICE" bench adam n=1000 results=bench.jsonl > bench.out 2>&1 ||
  { cat bench.out >&2; die "bench adam"; }
grep '"kind":"bench' bench.jsonl > records.txt
grep '"kind":"run"' run/results.jsonl >> records.txt
test "$(grep -c "\"commit\":\"$commit\"" records.txt)" = 3 || {
  cat records.txt >&2; die "a result has no commit"; }
