# awk -v steps=N -f spy.awk PLAN RECORD: whether a run of N steps did its plan, and nothing else.
# PLAN is the output of `sluice plan` for the run, with all lanes on the device. RECORD is the
# output of tests/gpu/spy.c for one process, in the order of time (sort -s -n). Each fault is
# printed and makes the exit status 1. Without a fault one line sums up the record.
#
# A lane's thread is the thread that shows the lane's instructions as ranges. Steps are counted from
# 1. Steps before `from` may still set up resources at a first call. The rules:
#   - Each lane's instructions are ranges in the plan's order, all of them in each step, by name.
#     Each lane has one thread. No range is left open.
#   - From the first range of step `from` to the end of the last range, no thread allocates or frees
#     memory of the GPU or pinned memory.
#   - From its first range of step `from` to its last range, a lane's thread puts work on streams
#     and never waits for it. Streams wait for each other's events.
#   - The exception is the loop's thread, which drives lane io. In each step it waits for events at
#     most
#       once for each wait of a LOAD       the step before has read the tokens that the LOAD writes
#       once for each lane                 the step before is complete: its times are read, its
#                                          marks are used again
#       once for METRICS                   loss and norm of the step
#     while the other lanes' threads put the next work on their streams. It waits for nothing else.
# A blind record is a fault too: memory must be allocated before, and the loop must wait in each
# step.
BEGIN { FS = "\t"; from = 3; calls = 0 }

function wrong(text) { if (complaints++ < 8) print text }
function word(line, first, width) {
  line = substr(line, first, width)
  gsub(/ /, "", line)
  return line
}

# A line of the plan, in columns:
# #3     gather   GATHER         h.0    m0   uses  <- #26 UPDATE root (step before)
FNR == NR {
  if ($0 !~ /^#[0-9]/) next
  index_ = word($0, 2, 5); lane = word($0, 8, 8); unit = word($0, 32, 6); micro = word($0, 39, 4)
  name = word($0, 17, 14) (unit == "" ? "" : " " unit) (micro == "" ? "" : " " micro) \
    " (#" index_ ", " lane ")"
  lane_of[name] = lane
  instruction[lane, in_lane[lane]++] = name
  if (in_lane[lane] == 1) { lanes++; first[lane] = name }
  if (lane == "io" && match($0, /  <- /)) waits += gsub(/#[0-9]/, "#", $0) - 1
  next
}

{ time = $1; thread = $2; what = $3; which = $4; seen[what]++ }

what == "absent" || what == "broken" { wrong("no calls of CUDA in the record: " which) }

what == "push" { open_range[thread, ++depth[thread]] = which }
what == "push" && !(which in lane_of) && which ~ /\(#[0-9]+, [a-z0-9]+\)$/ {
  wrong(which " is a range, but no instruction of the plan")
}
what == "push" && (which in lane_of) {
  lane = lane_of[which]
  step = int(begun[lane] / in_lane[lane]) + 1
  next_ = instruction[lane, begun[lane]++ % in_lane[lane]]
  if (which != next_) wrong("step " step ": lane " lane " begins " which " where " next_ " is next")
  if (!(lane in thread_of)) { thread_of[lane] = thread; drives[thread] = lane }
  if (thread_of[lane] != thread)
    wrong("step " step ": " which " is on thread " thread ", the lane began on thread " \
      thread_of[lane])
  if (drives[thread] != lane) wrong("thread " thread " drives lanes " drives[thread] " and " lane)
  if (step >= from && !(thread in judged)) judged[thread] = ++threads_judged
  if (step >= from && start == "") start = time
  if (step > last_step) last_step = step
  if (lane == "io" && which == first["io"]) loop_step = step
}
what == "pop" {
  if (depth[thread] == 0) {
    if (thread in drives) wrong("thread " thread " ends a range that it did not begin")
    next
  }
  which = open_range[thread, depth[thread]--]
  if (!(which in lane_of)) next
  end = time
  # What the thread waited for since its first range was between ranges of the run.
  for (i = 0; i < held[thread]; i++)
    wrong("lane " lane_of[which] ": its thread calls " held_call[thread, i] " in step " \
      held_step[thread, i])
  held[thread] = 0
}

what == "alloc" || what == "free" {
  if (start == "") before++
  else {
    call_time[calls] = time
    call[calls++] = which " (" what ") on thread " thread \
      (thread in drives ? ", of lane " drives[thread] : "")
  }
}

what == "sync" && (thread in judged) {
  if (thread == thread_of["io"]) {
    waited[loop_step]++
    if (which !~ /^cu(da)?EventSynchronize/) other[loop_step] = other[loop_step] " " which
  } else {
    held_call[thread, held[thread] + 0] = which
    lane = drives[thread]
    held_step[thread, held[thread]++] = int((begun[lane] - 1) / in_lane[lane]) + 1
  }
}

END {
  most = waits + lanes + 1
  if (lanes == 0 || !("io" in in_lane)) wrong("no plan")
  for (lane in in_lane)
    if (begun[lane] != steps * in_lane[lane])
      wrong("lane " lane ": " begun[lane] + 0 " instructions were begun in " steps " steps of " \
        in_lane[lane])
  for (thread in drives)
    if (depth[thread] > 0)
      wrong("lane " drives[thread] ": " open_range[thread, depth[thread]] " was never ended")
  for (i = 0; i < calls; i++) if (call_time[i] <= end) wrong("memory inside of steps: " call[i])
  # A step reaches from its first LOAD to that of the next step. The waits before it are counted
  # with it, and are as many in every step. After the last one the run ends.
  for (step = from; step < steps; step++) {
    if (waited[step] > most)
      wrong("step " step ": the loop waits " waited[step] " times, " most " are enough: " waits \
        " for LOADs, " lanes " lanes, METRICS")
    if (waited[step] == 0)
      wrong("step " step ": the loop never waits, which cannot be: the record is blind")
    if (other[step] != "") wrong("step " step ": the loop calls" other[step])
    if (waited[step] > highest) highest = waited[step]
  }
  if (before == 0) wrong("no memory was ever taken before step " from ": the record is blind")
  if (last_step > steps) wrong(last_step " steps, not " steps)
  if (complaints > 8) print "and " complaints - 8 " more"
  if (complaints == 0)
    print steps " steps, " lanes " lanes: " before " calls for memory before step " from \
      ", none in steps; the loop waits at most " highest " times per step, of " most "; lanes never"
  exit complaints > 0
}
