# awk -v steps=N -f spy.awk PLAN RECORD: whether a run of N steps did what its plan says, and nothing that a step must not do. PLAN is what `sluice plan` printed for the run, where all lanes work on the
# device; RECORD what tests/gpu/spy.c wrote of one process, in the order of time (sort -s -n). What is wrong goes to standard output and makes the exit status 1; else one line says what was seen.
#
# A lane's thread is the one that shows its instructions as ranges. Steps are counted from 1; those before `from` may still set up what a first call does.
#   - each lane's instructions are ranges in the plan's order, all of them in each step, by name; each lane has one thread, and no range is left open.
#   - from the first range of step `from` to the end of the last one, no thread takes memory, of the GPU or pinned, or gives it back.
#   - threads of lanes put work on streams and never wait for it there, from their first range of step `from` to their last one: streams wait for each other's events.
#   - but for the loop's thread, which drives lane io. In each step it waits for events, at most
#       once for each wait of a LOAD       the step before has read the tokens that the LOAD writes
#       once for each lane                 the step before is complete: its times are taken, its marks used anew
#       once for METRICS                   loss and norm of the step
#     while the other lanes' threads put what follows on their streams; and for nothing else.
# All that is counted was seen at all: memory was taken before, and the loop did wait in every step.
BEGIN { FS = "\t"; from = 3; calls = 0 }

function wrong(text) { if (complaints++ < 8) print text }
function word(line, first, width) { line = substr(line, first, width); gsub(/ /, "", line); return line }

# The plan: "#3     gather   GATHER         h.0    m0   uses  <- #26 UPDATE root (step before)", in columns.
FNR == NR {
  if ($0 !~ /^#[0-9]/) next
  index_ = word($0, 2, 5); lane = word($0, 8, 8); unit = word($0, 32, 6); micro = word($0, 39, 4)
  name = word($0, 17, 14) (unit == "" ? "" : " " unit) (micro == "" ? "" : " " micro) " (#" index_ ", " lane ")"
  lane_of[name] = lane
  instruction[lane, in_lane[lane]++] = name
  if (in_lane[lane] == 1) { lanes++; first[lane] = name }
  if (lane == "io" && match($0, /  <- /)) waits += gsub(/#[0-9]/, "#", $0) - 1
  next
}

{ time = $1; thread = $2; what = $3; which = $4; seen[what]++ }

what == "absent" || what == "broken" { wrong("no calls of CUDA in the record: " which) }

what == "push" { open_range[thread, ++depth[thread]] = which }
what == "push" && !(which in lane_of) && which ~ /\(#[0-9]+, [a-z0-9]+\)$/ { wrong(which " is a range, but no instruction of the plan") }
what == "push" && (which in lane_of) {
  lane = lane_of[which]
  step = int(begun[lane] / in_lane[lane]) + 1
  next_ = instruction[lane, begun[lane]++ % in_lane[lane]]
  if (which != next_) wrong("step " step ": lane " lane " begins " which " where " next_ " is next")
  if (!(lane in thread_of)) { thread_of[lane] = thread; drives[thread] = lane }
  if (thread_of[lane] != thread) wrong("step " step ": " which " is on thread " thread ", the lane began on thread " thread_of[lane])
  if (drives[thread] != lane) wrong("thread " thread " drives lanes " drives[thread] " and " lane)
  if (step >= from && !(thread in judged)) judged[thread] = ++threads_judged
  if (step >= from && start == "") start = time
  if (step > last_step) last_step = step
  if (lane == "io" && which == first["io"]) loop_step = step
}
what == "pop" {
  if (depth[thread] == 0) { if (thread in drives) wrong("thread " thread " ends a range that it did not begin"); next }
  which = open_range[thread, depth[thread]--]
  if (!(which in lane_of)) next
  end = time
  # What the thread waited for since its first range was between ranges of the run.
  for (i = 0; i < held[thread]; i++) wrong("lane " lane_of[which] ": its thread calls " held_call[thread, i] " in step " held_step[thread, i])
  held[thread] = 0
}

what == "alloc" || what == "free" {
  if (start == "") before++
  else { call_time[calls] = time; call[calls++] = which " (" what ") on thread " thread (thread in drives ? ", of lane " drives[thread] : "") }
}

what == "sync" && (thread in judged) {
  if (thread == thread_of["io"]) {
    waited[loop_step]++
    if (which !~ /^cu(da)?EventSynchronize/) other[loop_step] = other[loop_step] " " which
  } else {
    held_call[thread, held[thread] + 0] = which
    held_step[thread, held[thread]++] = int((begun[drives[thread]] - 1) / in_lane[drives[thread]]) + 1
  }
}

END {
  most = waits + lanes + 1
  if (lanes == 0 || !("io" in in_lane)) wrong("no plan")
  for (lane in in_lane) if (begun[lane] != steps * in_lane[lane]) wrong("lane " lane ": " begun[lane] + 0 " instructions were begun in " steps " steps of " in_lane[lane])
  for (thread in drives) if (depth[thread] > 0) wrong("lane " drives[thread] ": " open_range[thread, depth[thread]] " was never ended")
  for (i = 0; i < calls; i++) if (call_time[i] <= end) wrong("memory inside of steps: " call[i])
  # From one first LOAD to the next: what precedes it belongs to it, and is as much in every step. Behind the last one the run ends.
  for (step = from; step < steps; step++) {
    if (waited[step] > most) wrong("step " step ": the loop waits " waited[step] " times, " most " are enough: " waits " for LOADs, " lanes " lanes, METRICS")
    if (waited[step] == 0) wrong("step " step ": the loop never waits, which cannot be: the record is blind")
    if (other[step] != "") wrong("step " step ": the loop calls" other[step])
    if (waited[step] > highest) highest = waited[step]
  }
  if (before == 0) wrong("no memory was ever taken before step " from ": the record is blind")
  if (last_step > steps) wrong(last_step " steps, not " steps)
  if (complaints > 8) print "and " complaints - 8 " more"
  if (complaints == 0)
    print steps " steps, " lanes " lanes: " before " calls for memory before step " from ", none in steps; the loop waits at most " highest " times a step, of " most "; lanes never"
  exit complaints > 0
}
