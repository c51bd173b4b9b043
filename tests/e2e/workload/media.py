#!/usr/bin/env python3
"""Finds structures in a pool file by docs/media-format.md, and flips bits.

    media.py inodes POOL      inodes of files in use: number and pool offset
    media.py log POOL         first log pages of files that use two units of it or more: inode number and pool offset of
                              the page, whose units begin 64 bytes later
    media.py header POOL      pool offset of each region's header
    media.py segment POOL     pool offset of the table entry of each data segment
    media.py flip POOL BIT    flips a bit, counted from the start of the pool
"""

import struct
import sys

CLASS_INODES, CLASS_LOGS, CLASS_DATA = 1, 2, 3
KIND_FILE = 1


def is_whole(block):
    """The checksum (CRC-32C) of a superblock is right."""
    crc = 0xFFFFFFFF
    for byte in block[:252]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF == struct.unpack_from("<I", block, 252)[0]


class Pool:
    def __init__(self, file):
        self.file = file
        copies = [block for block in (self.read(0, 256), self.read(4096, 256)) if is_whole(block)]
        block = max(copies, key=lambda b: struct.unpack_from("<Q", b, 16)[0])
        self.shift, = struct.unpack_from("<I", block, 60)
        self.table, = struct.unpack_from("<Q", block, 72)
        self.first, = struct.unpack_from("<Q", block, 96)
        self.count, = struct.unpack_from("<I", block, 104)
        self.segments = {}  # (region, index) -> (class, pool offset, offset of the table entry)
        for n in range(self.count):
            word, = struct.unpack("<Q", self.read(self.table + 8 * n, 8))
            if word & (1 << 48) - 1:
                place = self.first + (n << self.shift)
                self.segments[word >> 32 & 0xFFFF, word & (1 << 28) - 1] = (word >> 28 & 15, place, self.table + 8 * n)

    def read(self, at, length):
        self.file.seek(at)
        return self.file.read(length)

    def locate(self, region, offset):
        return self.segments[region, offset >> self.shift][1] + (offset & (1 << self.shift) - 1)

    def files(self):
        """Number, pool offset and bytes of each inode of a file."""
        for (region, index), (kind, place, _) in sorted(self.segments.items()):
            if kind != CLASS_INODES:
                continue
            content = self.read(place, 1 << self.shift)
            for n in range(0, len(content), 256):
                slot = (index << self.shift) // 256 + n // 256
                if slot and content[n] == 0x69 and content[n + 2] == KIND_FILE:
                    yield region << 48 | slot, place + n, content[n:n + 256]


def main(what, path, *rest):
    with open(path, "r+b", buffering=0) as file:
        if what == "flip":
            at, bit = divmod(int(rest[0]), 8)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
            return
        pool = Pool(file)
        if what == "inodes":
            for number, at, _ in pool.files():
                print(number, at)
        elif what == "log":
            for number, _, inode in pool.files():
                page, = struct.unpack_from("<Q", inode, 16)
                units, = struct.unpack_from("<I", inode, 48)
                if page and units >= 4:  # positions 0 and 1 lie in the inode
                    print(number, pool.locate(number >> 48, page))
        elif what == "header":
            for (_, index), (_, at, _) in sorted(pool.segments.items()):
                if index == 0:
                    print(at)
        elif what == "segment":
            for kind, _, entry in pool.segments.values():
                if kind == CLASS_DATA:
                    print(entry)
        else:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
