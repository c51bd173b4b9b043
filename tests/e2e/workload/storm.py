#!/usr/bin/env python3
"""Directories renamed into each other by many processes, and the proof that none was lost, doubled or tied into a ring.

    storm.py plant TOP COUNT                 COUNT directories, each with a file that says which it is
    storm.py rename TOP COUNT SEED SECONDS   renames until the time is over; prints how many succeeded and failed
    storm.py check TOP COUNT                 every directory is there once, with its file
    storm.py carry TOP OTHER COUNT           a directory moved away through TOP and back through OTHER, another mount of it, COUNT times
    storm.py met TOP OTHER COUNT             a directory moved through TOP, COUNT times, found through OTHER by who makes one there
    storm.py apart TOP COUNT                 files renamed to new directories, alone; prints how long they took at the median

A rename may fail because another one was faster (ENOENT), because the target lies below the source (EINVAL) or is not
empty (ENOTEMPTY, EEXIST). A kernel that learns while it looks a name up that the directory was moved by another mount
moves its own record of it, and answers ESTALE when it cannot do so without waiting for a rename of this mount (d_splice_alias
in fs/dcache.c), and ELOOP when its own record would make a ring. No other failure is right, and none may take longer than
LONGEST seconds.
"""

import errno
import os
import random
import sys
import time

LONGEST = 20
# for as long at least a rename waits that takes a name along to a directory that would be changed without asking for it
NAMES_LAST = 0.05
MOVED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP}
RIGHT = MOVED | {errno.EINVAL, errno.ENOTEMPTY, errno.EEXIST}


def name(number):
    return f"d{number:02d}"


def plant(top, count):
    for number in range(count):
        path = os.path.join(top, name(number))
        os.mkdir(path)
        with open(os.path.join(path, "which"), "w") as file:
            file.write(name(number))


def places(top):
    """Where each directory is just now, as far as a walk among others that rename can tell."""
    found = {}
    to_visit = [top]
    while to_visit:
        path = to_visit.pop()
        if path.count("/") > 200:
            raise SystemExit(f"{path}: deeper than there are directories")
        try:
            entries = os.listdir(path)
        except OSError as error:
            if error.errno not in MOVED:
                raise
            continue
        for entry in entries:
            if entry != "which":
                found[entry] = os.path.join(path, entry)
                to_visit.append(found[entry])
    return found


def rename(top, count, seed, seconds):
    rng = random.Random(seed)
    succeeded, failed, longest = 0, 0, 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = places(top)
        for _ in range(8):
            source = name(rng.randrange(count))
            target = rng.choice([top] + sorted(found.values()))
            if source not in found:
                continue
            began = time.monotonic()
            try:
                os.rename(found[source], os.path.join(target, source))
                succeeded += 1
            except OSError as error:
                failed += 1
                if error.errno not in RIGHT:
                    raise SystemExit(f"renaming {found[source]} into {target}: {error}")
            took = time.monotonic() - began
            longest = max(longest, took)
            if took > LONGEST:
                raise SystemExit(f"renaming {found[source]} into {target} took {took:.1f} s")
    print(succeeded, failed, f"{longest:.3f}")


def check(top, count):
    seen = {}
    for path, directories, files in os.walk(top, onerror=lambda error: sys.exit(str(error))):
        if path == top:
            continue
        this = os.path.basename(path)
        if this in seen:
            raise SystemExit(f"{this} is there twice: {seen[this]} and {path}")
        seen[this] = path
        with open(os.path.join(path, "which")) as file:
            which = file.read()
        if which != this or files != ["which"]:
            raise SystemExit(f"{path} holds {files}, and says that it is {which!r}")
        links = os.stat(path).st_nlink
        if links != 2 + len(directories):
            raise SystemExit(f"{path} has {links} links and {len(directories)} directories")
    missing = {name(number) for number in range(count)} - set(seen)
    if missing or len(seen) != count:
        raise SystemExit(f"lost: {sorted(missing)}; {len(seen)} there")
    depth = max(path.count("/") for path in seen.values()) - top.count("/")
    print(f"{count} directories, each there once, {depth} deep at most")


def carry(top, other, count):
    """OTHER has seen it where it was, and does not look where it is now before it renames."""
    path = os.path.join(top, "carried")
    os.makedirs(os.path.join(path, "it"))
    with open(os.path.join(path, "it", "file"), "w") as file:
        file.write("carried")
    took = []
    there = os.path.join(other, "carried")
    for number in range(count):
        os.mkdir(os.path.join(path, name(number)))
        os.rename(os.path.join(path, "it"), os.path.join(path, name(number), "it"))
        began = time.monotonic()
        try:
            os.rename(os.path.join(there, name(number), "it"), os.path.join(there, "it"))
        except OSError as error:
            raise SystemExit(f"round {number}: moving it back through {other}: {error}")
        took.append(time.monotonic() - began)
        with open(os.path.join(there, "it", "file")) as file:
            if file.read() != "carried":
                raise SystemExit(f"round {number}: it is something else now")
        os.rmdir(os.path.join(path, name(number)))
    os.unlink(os.path.join(path, "it", "file"))
    os.rmdir(os.path.join(path, "it"))
    os.rmdir(path)
    print(f"{count} times away and back, in {sorted(took)[count // 2] * 1e3:.1f} ms at the median")


def met(top, other, count):
    """OTHER has seen it where it was, and finds it in the way of a directory that it makes: EEXIST, and nothing else."""
    places = [os.path.join("met", place) for place in ("from", "to", "aside")]
    wrong = {}
    for number in range(count):
        for place in places:
            os.makedirs(os.path.join(top, place), exist_ok=True)
        source, to, aside = (os.path.join(place, "it") for place in places)
        os.mkdir(os.path.join(top, source))
        os.stat(os.path.join(other, source))
        os.mkdir(os.path.join(other, aside))
        os.rename(os.path.join(top, source), os.path.join(top, to))
        try:
            os.mkdir(os.path.join(other, to))
            wrong["made"] = wrong.get("made", 0) + 1
        except OSError as error:
            if error.errno != errno.EEXIST:
                wrong[error.strerror] = wrong.get(error.strerror, 0) + 1
        remover = (top, other)[number // 2 % 2]
        for place in places:
            for left in os.listdir(os.path.join(remover, place)):
                os.rmdir(os.path.join(remover, place, left))
            if number % 2:
                os.rmdir(os.path.join(remover, place))
    os.rmdir(os.path.join(top, "met"))
    if wrong:
        raise SystemExit(f"of {count}: {wrong}")
    print(f"{count} times")


def apart(top, count):
    source = os.path.join(top, "source")
    os.mkdir(source)
    took = []
    for number in range(count):
        target = os.path.join(top, "target-" + name(number))
        os.mkdir(target)
        path = os.path.join(source, name(number))
        with open(path, "w"):
            os.stat(path)
        began = time.monotonic()
        os.rename(path, os.path.join(target, name(number)))
        took.append(time.monotonic() - began)
        os.unlink(os.path.join(target, name(number)))
        os.rmdir(target)
    os.rmdir(source)
    median = sorted(took)[count // 2]
    if median >= NAMES_LAST:
        raise SystemExit(f"of {count} renames most have waited, for {median * 1000:.1f} ms and more")
    print(f"{median * 1000:.2f} ms")


def main():
    what, top, count, *rest = sys.argv[1:]
    if what == "plant":
        plant(top, int(count))
    elif what == "rename":
        rename(top, int(count), int(rest[0]), float(rest[1]))
    elif what in ("carry", "met"):
        {"carry": carry, "met": met}[what](top, count, int(rest[0]))
    elif what == "apart":
        apart(top, int(count))
    elif what == "check":
        check(top, int(count))
    else:
        sys.exit(__doc__)


main()
