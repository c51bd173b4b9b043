#!/usr/bin/env python3
"""Random operations on one file, alternating between mounts, each compared with a copy in memory.

    alternate.py OPERATIONS SEED DIR DIR...

The file is kept open through every mount at once, so nothing here profits from what an open refreshes. Operations:
read, write, append, truncate, mapped read, mapped write with msync, fallocate, punch hole, zero range,
copy_file_range, SEEK_HOLE and SEEK_DATA, fstat, close and open again.
"""

import ctypes
import errno
import mmap
import os
import random
import sys

MOST = 256 * 1024
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


class Exerciser:
    def __init__(self, seed, directories):
        self.seed, self.random = seed, random.Random(seed)
        self.paths = [os.path.join(directory, f"alternate-{seed}") for directory in directories]
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self.paths]
        self.model = bytearray()
        self.history = []
        self.unsupported = set()

    def fail(self, text):
        raise SystemExit(f"seed {self.seed}: {text}\nlast operations:\n  " + "\n  ".join(self.history[-12:]))

    def range(self, within=None):
        """An offset and a length; within the file when asked."""
        most = MOST if within is None else within
        offset = self.random.randrange(most)
        if self.random.random() < 0.3:
            offset -= offset % 4096
        return offset, self.random.randrange(1, min(65536, most - offset) + 1)

    def compare(self, what, offset, seen, wanted):
        if seen == wanted:
            return
        if len(seen) != len(wanted):
            self.fail(f"{what}: {len(seen)} bytes at {offset}, expected {len(wanted)}")
        at = next(n for n in range(len(seen)) if seen[n] != wanted[n])
        self.fail(f"{what}: byte {offset + at} is {seen[at]:#x}, expected {wanted[at]:#x}")

    def extend(self, length):
        self.model.extend(bytes(max(0, length - len(self.model))))

    def fallocate(self, fd, mode, offset, length):
        if LIBC.fallocate(fd, mode, offset, length) == 0:
            return True
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:
            self.fail(f"fallocate {mode}: {os.strerror(number)}")
        self.unsupported.add(f"fallocate {mode}")
        return False

    def step(self, number):
        mount = number % len(self.fds)
        fd, size = self.fds[mount], len(self.model)
        kind = self.random.choices(
            ["read", "write", "append", "truncate", "mapread", "mapwrite", "fallocate", "punch", "zero", "copy", "seek",
             "stat", "reopen"],
            [20, 20, 5, 4, 8, 8, 2, 4, 3, 4, 4, 10, 2])[0]
        offset, length = self.range()
        self.history.append(f"{number}: {kind} through {mount} at {offset}, {length} bytes; size {size}")
        if kind == "read":
            self.compare("read", offset, os.pread(fd, length, offset), bytes(self.model[offset : offset + length]))
        elif kind == "write":
            data = self.random.randbytes(length)
            if os.pwrite(fd, data, offset) != length:
                self.fail("short write")
            self.extend(offset)
            self.model[offset : offset + length] = data
        elif kind == "append" and size < MOST:
            data = self.random.randbytes(min(length, 5000))
            other = os.open(self.paths[mount], os.O_WRONLY | os.O_APPEND)
            os.write(other, data)
            os.close(other)
            self.model += data
        elif kind == "truncate":
            os.ftruncate(fd, offset)
            del self.model[offset:]
            self.extend(offset)
        elif kind in ("mapread", "mapwrite") and size:
            offset, length = self.range(within=size)
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ if kind == "mapread" else mmap.ACCESS_WRITE) as mapping:
                if kind == "mapread":
                    seen = mapping[offset : offset + length]
                    self.compare("mapped read", offset, seen, bytes(self.model[offset : offset + length]))
                else:
                    data = self.random.randbytes(length)
                    mapping[offset : offset + length] = data
                    mapping.flush()
                    self.model[offset : offset + length] = data
        elif kind == "fallocate":
            keep = self.random.random() < 0.5
            if self.fallocate(fd, KEEP_SIZE if keep else 0, offset, length) and not keep:
                self.extend(offset + length)
        elif kind == "punch" and size:
            offset, length = self.range(within=size)
            if self.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length):
                self.model[offset : offset + length] = bytes(length)
        elif kind == "zero":
            keep = self.random.random() < 0.5
            if self.fallocate(fd, ZERO_RANGE | (KEEP_SIZE if keep else 0), offset, length):
                if not keep:
                    self.extend(offset + length)
                end = min(offset + length, len(self.model))
                self.model[offset:end] = bytes(max(0, end - offset))
        elif kind == "copy" and size:
            source, length = self.range(within=size)
            offset = self.random.randrange(MOST - length + 1)
            if offset < source + length and source < offset + length:
                return  # the system call refuses ranges that overlap
            copied = os.copy_file_range(fd, self.fds[(mount + 1) % len(self.fds)] if len(set(self.devices())) == 1 else fd,
                                        length, source, offset)
            if copied <= 0:
                self.fail(f"copy_file_range copied {copied} of {length} bytes")
            data = self.model[source : source + copied]
            self.extend(offset)
            self.model[offset : offset + copied] = data
        elif kind == "seek" and size:
            offset = self.random.randrange(size)
            self.seek(fd, offset)
        elif kind == "stat":
            seen = os.fstat(fd).st_size if number % 2 else os.stat(self.paths[mount]).st_size
            if seen != size:
                self.fail(f"size is {seen}, expected {size}")
        elif kind == "reopen":
            os.close(fd)
            self.fds[mount] = os.open(self.paths[mount], os.O_RDWR)

    def devices(self):
        return [os.fstat(fd).st_dev for fd in self.fds]

    def seek(self, fd, offset):
        """A hole reads as zeros; the end of the file is a hole."""
        hole = os.lseek(fd, offset, os.SEEK_HOLE)
        if not offset <= hole <= len(self.model):
            self.fail(f"SEEK_HOLE from {offset} found {hole}, the size is {len(self.model)}")
        try:
            data = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = len(self.model)
        if not offset <= data <= len(self.model):
            self.fail(f"SEEK_DATA from {offset} found {data}, the size is {len(self.model)}")
        if self.model[offset:data].strip(b"\0"):
            self.fail(f"SEEK_DATA from {offset} skipped data before {data}")
        if offset not in (hole, data):
            self.fail(f"{offset} is neither in a hole nor in data: {hole}, {data}")

    def finish(self):
        for mount, fd in enumerate(self.fds):
            self.compare(f"at the end through {mount}", 0, os.pread(fd, MOST * 2, 0), bytes(self.model))
            os.close(fd)
        os.unlink(self.paths[0])


def main(arguments):
    if len(arguments) < 3:
        raise SystemExit(__doc__)
    operations, seed, directories = int(arguments[0]), int(arguments[1]), arguments[2:]
    exerciser = Exerciser(seed, directories)
    for number in range(operations):
        exerciser.step(number)
    exerciser.finish()
    skipped = f", not supported here: {sorted(exerciser.unsupported)}" if exerciser.unsupported else ""
    print(f"seed {seed}: {operations} operations alternating between {len(directories)} mounts, "
          f"every byte as in memory{skipped}")


if __name__ == "__main__":
    main(sys.argv[1:])
