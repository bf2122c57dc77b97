#!/bin/sh
# Compares every include line of the source, and every symbol that an object file needs, with the
# edges in doc/layers.txt. A missing edge, an edge that no file uses, and a cycle are errors.
# Objects are those below $top_builddir; without it only include lines are compared.
set -eu
cd "${top_srcdir:?}"

# symbols: "src/plan/build.c U mem_alloc" for each symbol that an object needs or defines
symbols() {
  test -n "${top_builddir-}" || return 0
  (cd "$top_builddir" && find src gpu io -name '*.o' -exec nm -A -g {} +) |
    sed 's/\.o:[0-9a-f ]* \([A-Za-z]\) /.c \1 /'
}

# shellcheck disable=SC2046 # paths of the source have no spaces
symbols | awk -v built="${top_builddir:+yes}" '
function folder_of(path,   f, best) {
  best = ""
  for (f in folder) if ((path == f || index(path, f "/") == 1) && length(f) > length(best)) best = f
  return best
}
function exists(path,   line, there) {
  there = (getline line < path) >= 0
  close(path)
  return there
}
function complain(where, why) {
  printf "%s: %s\n", where, why
  bad = 1
}
function use(there, text) {
  used[here, there] = 1
  if (there != here && !((here, there) in edge))
    complain(FILENAME ":" FNR, text " needs an edge in doc/layers.txt: " here " -> " there)
}
# A symbol belongs to the folder with its header, also if its file counts as a folder of its own.
function check_symbols(   key, part, from, there) {
  for (key in needs) if (needs[key] in defines) {
    split(key, part, SUBSEP)
    from = folder_of(part[1])
    there = defines[needs[key]]
    sub(/\/[^\/]*$/, "", there)
    there = folder_of(there)
    symbols++
    if (there != from && !((from, there) in edge))
      complain(part[1], needs[key] "() needs an edge in doc/layers.txt: " from " -> " there)
  }
  if (built && !symbols) complain("doc/layers.txt", "no symbol of an object was checked")
}
# A folder without edges to or from unsettled folders is settled. A cycle never settles.
function check_cycles(   f, other, from, to, again, list) {
  do {
    again = 0
    for (f in folder) if (!(f in settled)) {
      from = to = 0
      for (other in folder) if (!(other in settled)) {
        from += (other, f) in edge
        to += (f, other) in edge
      }
      if (!from || !to) again = settled[f] = 1
    }
  } while (again)
  for (f in folder) if (!(f in settled)) list = list " " f
  if (list != "") complain("doc/layers.txt", "the edges of these folders form a cycle:" list)
}
FILENAME == "doc/layers.txt" {
  if (/^#/ || !NF) next
  first = 1
  if (/^[^ ]/) {
    here = $1
    sub(/:$/, "", here)
    folder[here] = FNR
    first = 2
  }
  for (i = first; i <= NF; i++) {
    edge[here, $i] = FNR
    if ($i ~ /^</) foreign[$i] = 1
  }
  next
}
FILENAME == "/dev/stdin" {
  if ($2 ~ /[Uw]/) needs[$1, $3] = $3
  else defines[$3] = $1
  next
}
FNR == 1 {
  files++
  here = folder_of(FILENAME)
  filled[here] = 1
  if (here == "") complain(FILENAME, "lies in no folder of doc/layers.txt")
}
/^[ \t]*#[ \t]*include[ \t]*</ {
  split($0, part, /[<>]/)
  library = part[2]
  sub(/[\/.].*/, "", library)
  if ("<" library ">" in foreign) use("<" library ">", "<" part[2] ">")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, part, /"/)
  name = part[2]
  if (name == "config.h" || name == "build_commit.h") next # made by configure and make
  beside = FILENAME
  sub(/[^\/]*$/, name, beside)
  if (exists(beside)) path = beside
  else if (exists("src/" name)) path = "src/" name
  else if (exists(name)) path = name
  else { complain(FILENAME ":" FNR, "\"" name "\" is nowhere in the source"); next }
  use(folder_of(path), "\"" name "\"")
}
END {
  if (!files) complain("doc/layers.txt", "nothing was checked")
  for (f in folder) if (!(f in filled)) complain("doc/layers.txt:" folder[f], "no file lies in " f)
  for (key in edge) if (!(key in used)) {
    split(key, end, SUBSEP)
    complain("doc/layers.txt:" edge[key], "no file uses the edge " end[1] " -> " end[2])
  }
  check_symbols()
  check_cycles()
  exit bad
}' doc/layers.txt /dev/stdin $(find src io gpu \
  \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null)
