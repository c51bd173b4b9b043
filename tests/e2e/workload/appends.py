#!/usr/bin/env python3
"""Numbered records appended to one file by several writers, and the proof that all are there, whole.

    appends.py write FILE WRITER COUNT     append COUNT records, one write(2) each, with O_APPEND
    appends.py check FILE COUNT WRITER...  every record of every writer is there once, whole and in its writer's order

Record lengths vary from 30 to some 800 bytes, so that records cross pages and lines.
"""

import os
import sys
import zlib


def record(writer, number):
    """The record's bytes: fully determined by writer and number, checksummed, ended by a newline."""
    filler = (f"{writer}.{number}." * 80)[: (number * 7919 + zlib.crc32(writer.encode())) % 770]
    body = f"{writer} {number:06d} {filler}"
    return f"{body} {zlib.crc32(body.encode()):08x}\n".encode()


def write(path, writer, count):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in range(count):
        bytes_ = record(writer, number)
        written = os.write(fd, bytes_)
        if written != len(bytes_):
            raise SystemExit(f"{path}: record {number} of {writer}: {written} of {len(bytes_)} bytes written")
    os.close(fd)


def check(path, count, writers):
    next_number = {writer: 0 for writer in writers}
    with open(path, "rb") as file:
        data = file.read()
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        line = data[position : end + 1]
        words = line.split(b" ", 2)
        writer = words[0].decode(errors="replace")
        number = next_number.get(writer)
        if end < 0 or number is None or line != record(writer, number):
            raise SystemExit(f"{path}: at byte {position}: expected record {number} of {writer!r}, found {line[:100]!r}")
        next_number[writer] = number + 1
        position = end + 1
    for writer, found in next_number.items():
        if found != count:
            raise SystemExit(f"{path}: {found} of {count} records of {writer}")
    print(f"{len(writers) * count} records of {len(writers)} writers, {len(data)} bytes, all whole and in order")


def main(arguments):
    match arguments:
        case ["write", path, writer, count]:
            write(path, writer, int(count))
        case ["check", path, count, *writers] if writers:
            check(path, int(count), writers)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
