#!/bin/sh
# Holds every include line of the source against doc/layers.txt.
set -eu
cd "${top_srcdir:?}"

# shellcheck disable=SC2046 # paths of the source have no spaces
awk '
function folder_of(path,   f, best) {
  best = ""
  for (f in rank) if ((path == f || index(path, f "/") == 1) && length(f) > length(best)) best = f
  return best
}
function exists(path,   line, there) {
  there = (getline line < path) >= 0
  close(path)
  return there
}
function complain(why) {
  printf "%s:%d: %s\n", FILENAME, FNR, why
  bad = 1
}
FILENAME == "doc/layers.txt" {
  if (/^#/ || !NF) next
  rank[$1] = ++layers
  for (i = 2; i <= NF; i++) { foreign[$i] = 1; may[$1, $i] = 1 }
  next
}
FNR == 1 {
  files++
  here = folder_of(FILENAME)
  if (here == "") complain("lies in no layer of doc/layers.txt")
}
/^[ \t]*#[ \t]*include[ \t]*</ {
  split($0, part, /[<>]/)
  library = part[2]
  sub(/[\/.].*/, "", library)
  if (library in foreign && !((here, library) in may)) complain("<" part[2] "> does not belong in " here)
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, part, /"/)
  name = part[2]
  if (name == "config.h") next
  beside = FILENAME
  sub(/[^\/]*$/, name, beside)
  if (exists(beside)) there = folder_of(beside)
  else if (exists("src/" name)) there = folder_of("src/" name)
  else if (exists(name)) there = folder_of(name)
  else { complain("\"" name "\" is nowhere in the source"); next }
  if (there == "" || rank[there] > rank[here]) complain(here " may not include \"" name "\"")
}
END {
  if (!files || !layers) { print "nothing was checked"; bad = 1 }
  exit bad
}' doc/layers.txt $(find src io gpu \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null)
