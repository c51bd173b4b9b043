#!/usr/bin/env python3
"""Spoils a pool file.

    spoil.py newer POOL             a newer format version, with good checksums
    spoil.py magic POOL             not a pool
    spoil.py superblocks POOL       both superblocks overwritten in places, checksums as they were
    spoil.py truncate POOL LENGTH
    spoil.py places POOL SEED       a few places between the superblocks and the end overwritten: garbage, zeros, copies of
                                    other places, single bits
"""

import os
import random
import struct
import sys

SUPERBLOCKS = (0, 4096)
USED = 256  # bytes of a superblock; the last four are the checksum


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def newer(file):
    for at in SUPERBLOCKS:
        file.seek(at)
        block = bytearray(file.read(USED))
        if block[:7] != b"POLVOFS":
            continue
        if crc32c(block[:-4]) != struct.unpack("<I", block[-4:])[0]:
            raise SystemExit(f"superblock at {at}: the checksum is not computed as this program believes")
        version = struct.unpack_from("<I", block, 8)[0]
        struct.pack_into("<I", block, 8, version + 1)
        struct.pack_into("<I", block, USED - 4, crc32c(block[:-4]))
        file.seek(at)
        file.write(block)


def places(file, seed):
    rng = random.Random(seed)
    length = os.fstat(file.fileno()).st_size
    used = used_places(file, length)
    for _ in range(rng.randrange(1, 12)):
        # Most of a pool is empty: aim at what is not.
        at = rng.choice(used) + rng.randrange(4096)
        size = min(rng.choice([1, 8, 64, 256, 4096]), length - at)
        file.seek(at)
        old = file.read(size)
        kind = rng.randrange(4)
        if kind == 0:
            new = rng.randbytes(size)
        elif kind == 1:
            new = bytes(size)
        elif kind == 2:
            file.seek(rng.choice(used))
            new = file.read(size)
        else:
            bit = rng.randrange(size * 8)
            new = bytearray(old)
            new[bit // 8] ^= 1 << bit % 8
        file.seek(at)
        file.write(new)


def used_places(file, length):
    """Offsets of pages after the superblocks that are not all zeros, without reading holes."""
    found, at = [], SUPERBLOCKS[-1] + 4096
    while at < length:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        for page in range(at - at % 4096, min(end, length - 4096), 4096):
            file.seek(page)
            if any(file.read(4096)):
                found.append(page)
        at = max(end, at + 1)
    return found or [8192]


def main(arguments):
    what, path, *rest = arguments
    with open(path, "r+b", buffering=0) as file:
        if what == "newer":
            newer(file)
        elif what == "magic":
            for at in SUPERBLOCKS:
                file.seek(at)
                file.write(b"#!/bin/sh\necho this is no pool\n")
        elif what == "superblocks":
            for at in SUPERBLOCKS:
                file.seek(at + 60)
                file.write(b"\xff\x00\xff\x00")
        elif what == "truncate":
            file.truncate(int(rest[0]))
        elif what == "places":
            places(file, int(rest[0]))
        else:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
