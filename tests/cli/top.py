"""Runs sluice top in a terminal of its own, for tests/cli/top.sh.

top.py KEYS COMMAND...  in a terminal of $COLUMNS columns, types KEYS after the second frame, and
                        prints the last frame. It fails if the command does not leave within
                        20 s, or leaves a terminal that does not echo, a hidden cursor, or an exit
                        status other than 0.
"""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

keys, command = sys.argv[1].encode(), sys.argv[2:]
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ,
            struct.pack("4H", 24, int(os.environ.pop("COLUMNS", 80)), 0, 0))
before = termios.tcgetattr(theirs)
child = os.fork()
if child == 0:
    os.setsid()
    for stream in range(3):
        os.dup2(theirs, stream)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execvp(command[0], command)
seen, typed, until, status = b"", False, time.time() + 20, None
while time.time() < until:
    if select.select([ours], [], [], 0.1)[0]:
        seen += os.read(ours, 65536)
    if not typed and seen.count(b"\x1b[J") >= 2:
        os.write(ours, keys)
        typed = True
    if status is None:
        done, code = os.waitpid(child, os.WNOHANG)
        status = code if done else None
    elif not select.select([ours], [], [], 0.1)[0]:
        break
if status is None:
    os.kill(child, 9)
    sys.exit("it does not leave")
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
assert termios.tcgetattr(theirs) == before, "the terminal is not as it was"
assert seen.rstrip().endswith(b"\x1b[?25h"), "the cursor is hidden"
frame = seen.split(b"\x1b[H")[-1].decode()
print(re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", frame).replace("\r", ""))
