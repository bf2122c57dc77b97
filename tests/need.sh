# shellcheck shell=sh
# Sourced by shell tests. Before a test starts anything, it declares with `need` every tool that
# POSIX and coreutils do not have. tests/lint.sh looks for tools that are not declared.

# skip WORD...: leaves with 77, which make check counts as skipped.
skip() {
  echo "skipped: $*"
  exit 77
}

# lack WORD...: leaves because a package is not installed. Such a test is skipped. But with
# SLUICE_TEST_STRICT in the environment it fails: check.sh has just installed all packages.
lack() {
  test -z "${SLUICE_TEST_STRICT:-}" || {
    echo "failed: this test needs $*, which check.sh does not install" >&2
    exit 1
  }
  skip "this test needs $*, which is not installed"
}

# need TOOL...
need() {
  for tool; do
    command -v "$tool" > /dev/null || lack "$tool"
  done
}

# need_h5py: sets $python to a Python that has h5py and NumPy.
need_h5py() {
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import h5py, numpy' 2> /dev/null; then return; fi
  done
  lack "Python with h5py"
}
