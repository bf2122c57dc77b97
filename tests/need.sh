# shellcheck shell=sh
# Sourced by shell tests. Every tool that POSIX and coreutils do not have is declared by `need`,
# before the test starts anything; tests/lint.sh looks for tools that are not declared.

# skip WORD...: leaves with 77, which make check counts as skipped.
skip() {
  echo "skipped: $*"
  exit 77
}

# need TOOL...
need() {
  for tool; do
    command -v "$tool" > /dev/null || skip "this test needs $tool, which is not installed"
  done
}
