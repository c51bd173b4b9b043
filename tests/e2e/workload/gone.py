#!/usr/bin/env python3
"""What a program sees of a node that dies and comes back.

    gone.py make TOP NODES           a directory with a file for each node: TOP/d0/f on node 0, ...
    gone.py hold TOP OUT NODE LIMIT  holds files of NODE open, a lock, and a working directory there; when OUT.gone appears
                                     looks at what still works, and when OUT.back does, at what works again
    gone.py read FILE [READY]        reads a file and says how long that took; with READY: from a working directory in the
                                     mount, after writing its process number there

LIMIT: longest time, in seconds, that an operation may take while the node is gone. Times are printed in milliseconds.
"""

import errno
import fcntl
import os
import sys
import time

BYTES = bytes(n * 7 % 251 for n in range(300_000))
# what answers from nodes that live, or at once from one that is known to be away, takes no longer; generous, since
# others use the machine too
SOON = 1.5


def region_of(path):
    return os.stat(path).st_ino >> 48


def on_node(make, remove, node, nodes):
    """Makes things until one lies on the node; a region's node is its number modulo the number of nodes."""
    for n in range(1000):
        name = f"try-{os.getpid()}-{n}"  # others do the same
        make(name)
        if region_of(name) % nodes == node:
            return name
        remove(name)
    raise SystemExit(f"nothing came to node {node}")


def make_file(name):
    with open(name, "wb") as file:
        file.write(BYTES)


def make(top, nodes):
    os.chdir(os.path.dirname(top))
    os.rename(on_node(os.mkdir, os.rmdir, 0, nodes), os.path.basename(top))
    for node in range(nodes):
        os.chdir(top)
        os.rename(on_node(os.mkdir, os.rmdir, node, nodes), f"d{node}")
        os.chdir(f"d{node}")
        for name in ("f", "locked"):
            os.rename(on_node(make_file, os.unlink, node, nodes), name)


def timed(operation):
    """The name of its errno (or "ok"), and how long it took."""
    started = time.monotonic()
    try:
        operation()
        said = "ok"
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error.errno))
    return said, time.monotonic() - started


def check(what, condition, *found):
    if not condition:
        raise SystemExit(f"{what}: {' '.join(map(str, found))}")


def wait_for(path):
    deadline = time.monotonic() + 120
    while not os.path.exists(path):
        check(f"no {path} within 120 s", time.monotonic() < deadline)
        time.sleep(0.02)


def read_all(fd):
    check("what was written is not there", os.pread(fd, len(BYTES) + 1, 0) == BYTES)


def hold(top, out, node, limit):
    nodes = 3
    os.chdir(f"{top}/d{node}")
    opened = os.open("f", os.O_RDWR)
    read_all(opened)
    dead_name = on_node(make_file, os.unlink, node, nodes)
    dead = os.open(dead_name, os.O_RDWR)
    os.unlink(dead_name)
    locked = os.open("locked", os.O_RDWR)
    fcntl.lockf(locked, fcntl.LOCK_SH)
    others = [f"{top}/d{other}" for other in range(nodes) if other != node]
    open(f"{out}.ready", "w").close()

    wait_for(f"{out}.gone")
    of_node = {
        "read of an open file": lambda: os.pread(opened, 4096, 0),
        "write to an open file": lambda: os.pwrite(opened, b"x", 0),
        "fstat": lambda: os.fstat(opened),
        "listing the working directory": lambda: os.listdir("."),
        "stat": lambda: os.stat("f"),
        "open": lambda: os.open("f", os.O_RDONLY),
        "create": lambda: os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        "read of an unlinked file": lambda: os.pread(dead, 4096, 0),
    }
    first = None
    for what, operation in of_node.items():
        said, took = timed(operation)
        bound = limit + SOON if first is None else SOON
        check(what, said == "EIO" and took < bound, said, f"after {took:.3f} s, limit {bound} s")
        first = took if first is None else first
    slowest = 0
    for other in others:
        for what, operation in {
            "others' files: read": lambda: make_sure(f"{other}/f"),
            "others' files: create": lambda: make_file(f"{other}/new-{os.getpid()}"),
            "others' files: rename": lambda: os.rename(f"{other}/new-{os.getpid()}", f"{other}/newer-{os.getpid()}"),
            "others' files: list": lambda: os.listdir(other),
        }.items():
            said, took = timed(operation)
            check(what, said == "ok", said)
            slowest = max(slowest, took)
    said, took = timed(lambda: os.statvfs(top))
    check("df", said == "ok" and took < SOON, said, took)
    print(f"gone: EIO after {first * 1000:.0f} ms, then at once; others' files slowest {slowest * 1000:.0f} ms", flush=True)
    open(f"{out}.seen", "w").close()

    wait_for(f"{out}.back")
    started = time.monotonic()
    while (said := timed(lambda: os.pread(opened, 4096, 0))[0]) != "ok":
        check("the open file does not work again", time.monotonic() - started < 10, said)
        time.sleep(0.02)
    back = time.monotonic() - started
    read_all(opened)
    os.pwrite(opened, BYTES[1000:2000], 1000)
    read_all(opened)
    check("the working directory", "f" in os.listdir("."))
    make_sure("f")
    said, _ = timed(lambda: os.pread(dead, 4096, 0))
    check("the unlinked file, whose session has ended", said in ("ESTALE", "EIO"), said)
    said, _ = timed(lambda: os.pread(locked, 10, 0))
    check("reading under a lock that its node has given before", said == "ok", said)
    os.close(locked)
    locked = os.open("locked", os.O_RDWR)
    fcntl.lockf(locked, fcntl.LOCK_SH)
    read_all(locked)
    print(f"back: after {back * 1000:.0f} ms", flush=True)


def make_sure(path):
    with open(path, "rb") as file:
        check(f"{path} holds something else", file.read() == BYTES)


def read(path, ready=None):
    if ready:
        os.chdir(os.path.dirname(os.path.dirname(path)))  # on a node that lives
        with open(ready + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(ready + ".new", ready)
    said, took = timed(lambda: make_sure(path))
    print(f"{said} {took * 1000:.0f}")


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "make":
        make(arguments[0], int(arguments[1]))
    elif command == "hold":
        hold(arguments[0], arguments[1], int(arguments[2]), float(arguments[3]))
    else:
        read(*arguments)
