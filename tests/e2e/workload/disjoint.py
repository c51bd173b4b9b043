"""Writers that share a file and no byte of it, each through a directory of its own (the same one, mounted elsewhere).

    disjoint.py OPERATIONS SEED FILE FILE...     a writer for each FILE, all of which are one file

The file is cut into stripes of a length that is no multiple of a page, dealt out in turn, so that neighbours share pages.
Each writer carries out OPERATIONS random operations inside its stripes (writes, zeroing, holes, copies within, stores
into a shared mapping of whole pages that are its own), reads back what it has, and compares with what it knows. In the
end everybody compares the whole file. Prints the number of operations; exits with 1 when a byte is wrong.
"""

import ctypes
import mmap
import multiprocessing
import os
import random
import sys

STRIPE = 21_013
STRIPES = 60
PAGE = 4096
PUNCH_HOLE = 0x02 | 0x01
ZERO_RANGE = 0x10 | 0x01
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "fallocate")


def differing(found, expected, offset):
    for n, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            return f"byte {offset + n} is {a:#x}, not {b:#x}"
    return f"{len(found)} bytes at {offset}, not {len(expected)}"


class Writer:
    def __init__(self, number, writers, name, seed):
        self.random = random.Random(seed * 1000 + number)
        self.fd = os.open(name, os.O_RDWR)
        self.stripes = [s * STRIPE for s in range(number, STRIPES, writers)]
        self.known = {start: bytearray(STRIPE) for start in self.stripes}
        self.operations = [self.write] * 5 + [self.read] * 5 + [self.punch, self.zero, self.copy, self.store, self.sync]

    def somewhere(self):
        start = self.random.choice(self.stripes)
        at = self.random.randrange(STRIPE)
        length = min(STRIPE - at, self.random.choice([1, 7, 64, 700, 4096, 9000, STRIPE]))
        return start, at, length

    def write(self):
        start, at, length = self.somewhere()
        data = self.random.randbytes(length)
        assert os.pwrite(self.fd, data, start + at) == length
        self.known[start][at : at + length] = data

    def read(self):
        start, at, length = self.somewhere()
        found, expected = os.pread(self.fd, length, start + at), self.known[start][at : at + length]
        assert found == expected, differing(found, expected, start + at)

    def punch(self):
        start, at, length = self.somewhere()
        fallocate(self.fd, PUNCH_HOLE, start + at, length)
        self.known[start][at : at + length] = bytes(length)

    def zero(self):
        start, at, length = self.somewhere()
        fallocate(self.fd, ZERO_RANGE, start + at, length)
        self.known[start][at : at + length] = bytes(length)

    def copy(self):
        start, at, length = self.somewhere()
        to = self.random.choice(self.stripes)
        if to == start:
            return
        copied = os.copy_file_range(self.fd, self.fd, length, start + at, to + at)
        self.known[to][at : at + copied] = self.known[start][at : at + copied]

    def store(self):
        """Whole pages inside a stripe: what the kernel writes back is no neighbour's."""
        start = self.random.choice(self.stripes)
        first = -(-start // PAGE) * PAGE
        pages = (start + STRIPE - first) // PAGE
        page = first + self.random.randrange(pages) * PAGE
        data = self.random.randbytes(self.random.randrange(1, PAGE))
        with mmap.mmap(self.fd, PAGE, offset=page) as mapped:
            at = self.random.randrange(PAGE - len(data) + 1)
            mapped[at : at + len(data)] = data
            mapped.flush()
        self.known[start][page - start + at : page - start + at + len(data)] = data

    def sync(self):
        os.fsync(self.fd)

    def run(self, operations):
        for _ in range(operations):
            self.random.choice(self.operations)()
        return self.known


def work(number, writers, name, seed, operations, known):
    try:
        known.put((number, Writer(number, writers, name, seed).run(operations)))
    except BaseException as error:
        known.put((number, f"writer {number} ({name}): {type(error).__name__}: {error}"))


def main():
    operations, seed, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    size = STRIPE * STRIPES
    fd = os.open(names[0], os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.ftruncate(fd, size)
    os.close(fd)
    answers = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=work, args=(n, len(names), name, seed, operations, answers))
        for n, name in enumerate(names)
    ]
    for worker in workers:
        worker.start()
    expected, failed = bytearray(size), False
    for _ in workers:
        _, known = answers.get(timeout=1500)
        if isinstance(known, str):
            print(known, file=sys.stderr)
            failed = True
            continue
        for start, content in known.items():
            expected[start : start + STRIPE] = content
    for worker in workers:
        worker.join()
    for name in names:
        with open(name, "rb") as file:
            found = file.read()
        if not failed and found != expected:
            print(f"in the end, {name}: {differing(found, expected, 0)}", file=sys.stderr)
            failed = True
    print(f"{len(names)} x {operations} operations, seed {seed}")
    sys.exit(1 if failed else 0)


main()
