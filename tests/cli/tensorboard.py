#!/usr/bin/env python3
"""Prints the event files of a run folder, one number per line: step, name, value.

    tensorboard.py FOLDER            all numbers, and the starts: STEP start
    tensorboard.py --shown FOLDER    what TensorBoard shows: later starts drop earlier numbers

The reader is independent of Sluice's writer: CRC-32C by a table, and a generic reader of protocol
buffers. It fails if a record is damaged."""

import pathlib
import struct
import sys

TABLE = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        (n,) = struct.unpack_from("<Q", data, at)
        (head,) = struct.unpack_from("<I", data, at + 8)
        body = data[at + 12 : at + 12 + n]
        (tail,) = struct.unpack_from("<I", data, at + 12 + n)
        assert head == masked(data[at : at + 8]), f"length at {at}"
        assert len(body) == n and tail == masked(body), f"data at {at}"
        yield body
        at += 16 + n


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            n = {1: 8, 5: 4}.get(kind)
            if n is None:
                assert kind == 2, f"wire type {kind}"
                n, at = varint(data, at)
            value, at = data[at : at + n], at + n
            assert len(value) == n
        yield tag >> 3, value


def numbers(folder):
    """(step, name, value) of all files, in the order in which TensorBoard reads them."""
    for path in sorted(pathlib.Path(folder).glob("*tfevents*")):
        for i, record in enumerate(records(path.read_bytes())):
            event = dict(fields(record))
            (seconds,) = struct.unpack("<d", event[1])
            assert 1.6e9 < seconds < 1e10, seconds
            assert (i == 0) == (event.get(3) == b"brain.Event:2"), "version of the format"
            if 7 in event:
                assert dict(fields(event[7])) == {1: 1}, "not a START"
                yield event[2], "start", None
            for field, value in fields(event.get(5, b"")):
                assert field == 1
                number = dict(fields(value))
                yield event[2], number[1].decode(), struct.unpack("<f", number[2])[0]


def main():
    found = []
    for step, name, value in numbers(sys.argv[-1]):
        if name == "start" and sys.argv[1] == "--shown":
            found = [known for known in found if known[0] < step]
        else:
            found.append((step, name, value))
    for step, name, value in found:
        print(step, name, "" if value is None else format(value, ".9g"))


if __name__ == "__main__":
    main()
