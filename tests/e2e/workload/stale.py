#!/usr/bin/env python3
"""Changes made on one mount and observed on all of them: no observation may be older than what was done before it began.

    stale.py plant TOP WRITERS                          what the writers change
    stale.py write TOP WRITER SEED BOARD                changes its things until the board says stop; prints how many changes
    stale.py watch TOP WRITERS SEED BOARD WATCHER FAULTS [PAUSE]    observes until the board says stop; prints how many observations
    stale.py count BOARD                                observations so far, by all
    stale.py stop BOARD

Every thing has a number that its one writer raises, and the state of the thing is a function of that number: a name, whether
there is a name, a size, a mode, times, an attribute, bytes, a link's target, the directory that it lies in. On the board (a file that
all map) a writer says `begun` before a change and `done` after it. An observer reads `done`, looks, and reads `begun`: what it saw
must be the state of a number between the two. After a change that failed either may hold, and it is made again.

With faults (FAULTS is 1) an observation may be refused; it may never be old.

An observer with PAUSE waits for up to so many seconds before it looks: when something has stood still meanwhile, it looks first when
that goes on, at what others have changed long before.
"""

import errno
import mmap
import os
import random
import struct
import sys
import time

WRITERS_MAX = 8
WATCHERS_MAX = 64
BLOCK = 4096
KINDS = ["name", "presence", "size", "mode", "mtime", "xattr", "bytes", "link", "place"]
# A directory that moves may be told to be elsewhere (see storm.py), and a link that is replaced twice between being found and being
# read be gone: the kernel asks again once.
MOVES = {"place", "link"}
MOVED = {errno.ESTALE, errno.ELOOP, errno.ENOTDIR}


class Board:
    """Numbers that all processes see; each has one writer."""

    def __init__(self, path):
        count = 1 + WATCHERS_MAX + 2 * WRITERS_MAX * len(KINDS)
        with open(path, "a+b") as file:
            file.truncate(8 * count)
            self.words = memoryview(mmap.mmap(file.fileno(), 8 * count)).cast("q")

    def place(self, writer, kind):
        return 1 + WATCHERS_MAX + 2 * (writer * len(KINDS) + kind)

    def stopped(self):
        return self.words[0] != 0


def directory(writer):
    return f"w{writer}"


def enter(top):
    """Paths begin here, so that they lead into the mount or, when that is gone, nowhere."""
    try:
        os.chdir(top)
        return True
    except OSError:
        return False


def enter_first(top, board):
    """There may be a fault from the first moment on."""
    while not enter(top) and not board.stopped():
        time.sleep(0.02)


def size_of(number):
    return number * 37 % 6000


def mode_of(number):
    return 0o400 | number % 0o377


def mtime_of(number):
    return number * 1_000_000_007 % (1 << 60)


class Writer:
    def __init__(self, writer):
        self.here = directory(writer)

    def at(self, *parts):
        return os.path.join(self.here, *parts)

    def plant(self):
        for path in ("", "names", "there", "p0", "p1", "p0/d"):
            os.mkdir(self.at(path))
        for path in ("names/n0", "size", "mode", "mtime", "xattr", "bytes", "p0/d/f"):
            with open(self.at(path), "wb"):
                pass
        os.symlink("0", self.at("link"))
        for kind in range(len(KINDS)):
            if KINDS[kind] not in ("name", "presence", "link", "place"):
                self.change(kind, 0, False)

    def change(self, kind, number, again):
        """Brings a thing to the state of a number; `again`: that may have happened already."""
        try:
            getattr(self, KINDS[kind])(number)
        except OSError as error:
            if not (again and error.errno in (errno.ENOENT, errno.EEXIST)):
                raise

    def name(self, number):
        os.rename(self.at("names", f"n{number - 1}"), self.at("names", f"n{number}"))

    def presence(self, number):
        path = self.at("there", "x")
        if number % 2:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        else:
            os.unlink(path)

    def size(self, number):
        os.truncate(self.at("size"), size_of(number))

    def mode(self, number):
        os.chmod(self.at("mode"), mode_of(number))

    def mtime(self, number):
        os.utime(self.at("mtime"), ns=(0, mtime_of(number)))

    def xattr(self, number):
        os.setxattr(self.at("xattr"), "user.number", str(number).encode())

    def bytes(self, number):
        path = self.at("bytes")
        before = os.stat(path)
        fd = os.open(path, os.O_WRONLY)
        try:
            wrote = os.pwrite(fd, struct.pack("q", number) * (BLOCK // 8), 0)
        finally:
            os.close(fd)
        if wrote != BLOCK:
            raise SystemExit(f"{path}: a short write of {wrote} bytes")
        if number % 2:
            # now size and mtime tell nothing
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def link(self, number):
        new = self.at("link.new")
        try:
            os.symlink(str(number), new)
        except FileExistsError:
            os.unlink(new)
            os.symlink(str(number), new)
        os.rename(new, self.at("link"))

    def place(self, number):
        os.rename(self.at(f"p{(number + 1) % 2}", "d"), self.at(f"p{number % 2}", "d"))


def write(top, writer, seed, board):
    rng = random.Random(seed)
    enter_first(top, board)
    writer_of = Writer(writer)
    changes = 0
    failed = {}
    while not board.stopped():
        kind = rng.randrange(len(KINDS))
        place = board.place(writer, kind)
        for _ in range(rng.choice((1, 1, 1, 5))):
            number = board.words[place + 1] + 1
            again = board.words[place] == number
            board.words[place] = number
            try:
                writer_of.change(kind, number, again)
            except OSError as error:
                what = KINDS[kind], error.errno
                failed[what] = failed.get(what, 0) + 1
                time.sleep(0.05)
                enter(top)
                continue
            board.words[place + 1] = number
            changes += 1
        # long enough for what others have cached to be used again
        time.sleep(rng.choice((0, 0.001, 0.01, 0.05)))
    print(changes, show(failed))


class Watcher:
    def __init__(self, rng):
        self.rng = rng
        self.kept = {}

    def look(self, writer, kind, low):
        """Looks at a thing that has at least the number `low`; returns a function that tells whether a number fits, and
        what was seen."""
        return getattr(self, KINDS[kind])(directory(writer), low)

    def name(self, here, low):
        names = os.path.join(here, "names")
        which = low + self.rng.choice((0, 0, 0, -1, 1))
        if self.rng.randrange(8) == 0:
            seen = set(os.listdir(names))
            # while it is renamed a listing may show both names, or none
            return (lambda number, one: seen == {f"n{number}"} if one else True), seen
        there = exists(os.path.join(names, f"n{which}"), self.rng)
        return (lambda number, _: there == (number == which)), f"n{which} {there}"

    def presence(self, here, _low):
        there = exists(os.path.join(here, "there", "x"), self.rng)
        return (lambda number, _: there == (number % 2 == 1)), there

    def size(self, here, _low):
        path = os.path.join(here, "size")
        way = self.rng.randrange(3)
        if way == 0:
            size = os.fstat(self.open(path)).st_size
        elif way == 1:
            size = len(os.pread(self.open(path), 8192, 0))
        else:
            size = os.stat(path).st_size
        # while it changes, a read of two pages may end with the first one
        torn = way == 1 and size == BLOCK
        return (lambda number, one: size == size_of(number) or torn and not one), size

    def mode(self, here, _low):
        mode = os.stat(os.path.join(here, "mode")).st_mode & 0o777
        return (lambda number, _: mode == mode_of(number)), oct(mode)

    def mtime(self, here, _low):
        mtime = os.stat(os.path.join(here, "mtime")).st_mtime_ns
        return (lambda number, _: mtime == mtime_of(number)), mtime

    def xattr(self, here, _low):
        value = int(os.getxattr(os.path.join(here, "xattr"), "user.number"))
        return (lambda number, _: value == number), value

    def bytes(self, here, _low):
        path = os.path.join(here, "bytes")
        if self.rng.randrange(2):
            data = os.pread(self.open(path), BLOCK, 0)
        else:
            with open(path, "rb", buffering=0) as file:
                data = file.read(BLOCK)
        values = set(struct.unpack(f"{len(data) // 8}q", data))
        return (lambda number, _: values == {number}), sorted(values)

    def link(self, here, _low):
        target = os.readlink(os.path.join(here, "link"))
        return (lambda number, _: target == str(number)), target

    def place(self, here, _low):
        which = self.rng.randrange(2)
        there = exists(os.path.join(here, f"p{which}", "d", "f"), self.rng)
        return (lambda number, _: there == (number % 2 == which)), f"p{which} {there}"

    def open(self, path):
        """A descriptor for reading that is kept for a while."""
        fd = self.kept.get(path)
        if fd is not None and self.rng.randrange(50) == 0:
            self.close(path)
            fd = None
        if fd is None:
            fd = self.kept[path] = os.open(path, os.O_RDONLY)
        return fd

    def close(self, path):
        os.close(self.kept.pop(path))

    def close_all(self):
        for path in list(self.kept):
            try:
                self.close(path)
            except OSError:
                pass


def exists(path, rng):
    try:
        if rng.randrange(4) == 0:
            os.close(os.open(path, os.O_RDONLY))
        else:
            os.stat(path)
        return True
    except FileNotFoundError:
        return False


def watch(top, writers, seed, board, watcher, faults, pause):
    rng = random.Random(seed)
    enter_first(top, board)
    watching = Watcher(rng)
    observations = 0
    refused = {}
    while not board.stopped():
        writer, kind = rng.randrange(writers), rng.randrange(len(KINDS))
        place = board.place(writer, kind)
        for _ in range(1 if pause else rng.choice((1, 2, 2, 20))):
            time.sleep(rng.uniform(0, pause))
            low = board.words[place + 1]
            try:
                fits, seen = watching.look(writer, kind, low)
            except OSError as error:
                if not faults and not (KINDS[kind] in MOVES and error.errno in MOVED):
                    raise SystemExit(f"{KINDS[kind]} of writer {writer}: {error}")
                what = KINDS[kind], error.errno
                refused[what] = refused.get(what, 0) + 1
                watching.close_all()
                time.sleep(0.02)
                enter(top)
                continue
            high = board.words[place]
            if not any(fits(number, low == high) for number in range(low, high + 1)):
                raise SystemExit(
                    f"STALE: {KINDS[kind]} of writer {writer} seen as {seen!r}, while its number is from {low} to {high}"
                )
            observations += 1
            board.words[1 + watcher] = observations
    print(observations, show(refused))


def show(errors):
    return ",".join(f"{kind}/{errno.errorcode[number]}:{count}" for (kind, number), count in sorted(errors.items())) or "-"


def main():
    what, *rest = sys.argv[1:]
    if what == "plant":
        os.chdir(rest[0])
        for writer in range(int(rest[1])):
            Writer(writer).plant()
    elif what == "write":
        write(rest[0], int(rest[1]), int(rest[2]), Board(rest[3]))
    elif what == "watch":
        watch(rest[0], int(rest[1]), int(rest[2]), Board(rest[3]), int(rest[4]), rest[5] == "1", float((rest[6:] or [0])[0]))
    elif what == "count":
        print(sum(Board(rest[0]).words[1 : 1 + WATCHERS_MAX]))
    elif what == "stop":
        Board(rest[0]).words[0] = 1
    else:
        sys.exit(__doc__)


main()
