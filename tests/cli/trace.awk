# awk -v step=S -v rank=R -f trace.awk PLAN TRACE: whether the trace of one step is JSON and shows
# the plan. Steps are counted from 0. The trace has one event for each instruction, by name, on its
# lane, in the plan's order. Instructions that compute have a duration above zero. PLAN is the
# output of `sluice plan`. Each fault is printed and makes the exit status 1.
BEGIN { n = 0 }
function wrong(text) { if (complaints++ < 8) print text }
function word(line, first, width) {
  line = substr(line, first, width)
  gsub(/ /, "", line)
  return line
}

FNR == NR {
  if ($0 !~ /^#[0-9]/) next
  index_ = word($0, 2, 5); unit = word($0, 32, 6); micro = word($0, 39, 4)
  lane_of[n] = word($0, 8, 8); op[n] = word($0, 17, 14)
  name[n] = op[n] (unit == "" ? "" : " " unit) (micro == "" ? "" : " " micro) \
    " (#" index_ ", " lane_of[n] ")"
  n++
  next
}
{ text = text $0 "\n" }

# --- JSON: `value` reads one value and stores it and all values in it in found[path]. `bad` is the
# place of the first error.
function blank() { match(text, /^[ \t\r\n]*/); text = substr(text, RLENGTH + 1) }
function take(pattern) {
  blank()
  if (bad != "" || !match(text, pattern)) return 0
  taken = substr(text, 1, RLENGTH)
  text = substr(text, RLENGTH + 1)
  return 1
}
function fail() { if (bad == "") bad = text == "" ? "its end" : substr(text, 1, 40) }
function string(    hex) {
  hex = "[0-9a-fA-F]"
  return take("^\"([^\"\\\\\001-\037]|\\\\[\"\\\\/bfnrt]|\\\\u" hex hex hex hex ")*\"")
}
function value(path,    i, key) {
  if (take("^[{]")) {
    if (take("^[}]")) return
    do {
      if (!string()) { fail(); return }
      key = substr(taken, 2, length(taken) - 2)
      if (!take("^:")) { fail(); return }
      value(path "." key)
    } while (take("^,"))
    if (!take("^[}]")) fail()
  } else if (take("^[[]")) {
    i = 0
    if (take("^[]]")) return
    do value(path "." i++); while (take("^,"))
    items[path] = i
    if (!take("^[]]")) fail()
  } else if (string()) found[path] = substr(taken, 2, length(taken) - 2)
  else if (take("^-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?") ||
           take("^(true|false|null)")) found[path] = taken
  else fail()
}

END {
  if (n == 0) wrong("no plan")
  value("")
  blank()
  if (text != "") fail()
  if (bad != "") { print "the trace is no JSON at: " bad; exit 1 }
  for (i = 0; i < items[".traceEvents"]; i++) {
    at = ".traceEvents." i
    if (found[at ".ph"] == "M" && found[at ".name"] == "thread_name")
      lane_name[found[at ".tid"]] = found[at ".args.name"]
    if (found[at ".ph"] != "X") continue
    key = found[at ".name"]
    if (found[at ".args.step"] != step)
      wrong(key " is of step " found[at ".args.step"] ", not " step)
    if (found[at ".pid"] != rank) wrong(key " is of rank " found[at ".pid"] ", not " rank)
    if (key in event) wrong(key " is there twice")
    event[key] = at
    events++
  }
  for (k = 0; k < n; k++) {
    if (!(name[k] in event)) { wrong(name[k] " is not in the trace"); continue }
    at = event[name[k]]
    lane = lane_of[k]
    begin = found[at ".ts"] + 0; length_ = found[at ".dur"] + 0
    if (lane_name[found[at ".tid"]] != lane)
      wrong(name[k] " is on lane " lane_name[found[at ".tid"]])
    if (found[at ".cat"] != op[k]) wrong(name[k] " is a " found[at ".cat"])
    if (length_ < 0 || (length_ == 0 && op[k] ~ /FORWARD|BACKWARD|LOSS/))
      wrong(name[k] " lasts " length_ " us")
    if ((lane in before) && begin < before[lane])
      wrong(name[k] " begins before the one before it on its lane")
    before[lane] = begin
  }
  if (events != n) wrong(events + 0 " events, " n " instructions")
  if (complaints > 8) print "and " complaints - 8 " more"
  if (complaints == 0)
    print events " events of step " step " on rank " rank ", one for each instruction"
  exit complaints > 0
}
