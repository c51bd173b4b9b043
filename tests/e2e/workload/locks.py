"""Processes that lock: see tests/e2e/locks.

    locks.py count KIND FILE ROUNDS     adds ROUNDS to the number in FILE, one by one, each under a lock (fcntl, flock)
    locks.py recount KIND FILE ROUNDS   the same, opening FILE for each lock and closing it in place of unlocking (flock,
                                        ofd: a lock of the open file)
    locks.py handed KIND FILE OTHER ROUNDS  locks without waiting by way of FILE and of OTHER, the same on another mount, in turn, right
                                        after the one before was closed (flock, ofd)
    locks.py hold KIND FILE FIRST LEN   locks, says "held", holds until its stdin ends
    locks.py wait KIND FILE FIRST LEN   waits for a lock, says how many seconds that took, holds until its stdin ends
    locks.py try KIND FILE FIRST LEN    says "free", "locked" or, for fcntl, "locked by PID"
    locks.py pair FIRST_FILE SECOND_FILE  locks the first, says "held", reads a line, waits for the second, says "both" or
                                        the name of the error
    locks.py interrupt KIND FILE        waits for a lock with an alarm of a second; says "interrupted" and its seconds
"""

import errno
import fcntl
import os
import signal
import struct
import sys
import time


# what Python 3.11 lacks
F_OFD_SETLK, F_OFD_SETLKW = 37, 38


def take(kind, fd, first, length, wait=True):
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    if kind == "flock":
        fcntl.flock(fd, how)
    elif kind == "ofd":
        fcntl.fcntl(fd, F_OFD_SETLKW if wait else F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, first, length, 0))
    else:
        fcntl.lockf(fd, how, length, first)


def drop(kind, fd, first, length):
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        fcntl.lockf(fd, fcntl.LOCK_UN, length, first)


def opened(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def add_one(fd):
    number = int(os.pread(fd, 32, 0) or b"0")
    os.pwrite(fd, b"%020d" % (number + 1), 0)


def count(kind, path, rounds):
    fd = opened(path)
    for _ in range(int(rounds)):
        take(kind, fd, 0, 0)
        add_one(fd)
        drop(kind, fd, 0, 0)


def recount(kind, path, rounds):
    for _ in range(int(rounds)):
        fd = opened(path)
        take(kind, fd, 0, 0)
        add_one(fd)
        os.close(fd)


def handed(kind, path, other, rounds):
    for number in range(int(rounds)):
        for name in (path, other):
            fd = opened(name)
            try:
                take(kind, fd, 0, 0, wait=False)
            except BlockingIOError:
                sys.exit(f"round {number}: {name} is locked, and nobody has it open")
            add_one(fd)
            os.close(fd)


def hold(kind, path, first, length, wait=False):
    fd = opened(path)
    began = time.monotonic()
    take(kind, fd, int(first), int(length), wait)
    print("%.2f" % (time.monotonic() - began) if wait else "held", flush=True)
    sys.stdin.read()


def attempt(kind, path, first, length):
    fd = opened(path)
    if kind == "fcntl":
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, int(first), int(length), 0)
        typ, _, at, of, pid = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, asked)[:28])
        return print("free" if typ == fcntl.F_UNLCK else f"locked by {pid}, {at} {of}")
    try:
        take(kind, fd, int(first), int(length), wait=False)
        print("free")
    except BlockingIOError:
        print("locked")


def pair(first, second):
    fds = [opened(first), opened(second)]
    take("fcntl", fds[0], 0, 0)
    print("held", flush=True)
    sys.stdin.readline()
    try:
        take("fcntl", fds[1], 0, 0)
        print("both", flush=True)
    except OSError as error:
        print("EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno], flush=True)


def interrupt(kind, path):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    fd = opened(path)
    signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    signal.alarm(1)
    try:
        take(kind, fd, 0, 0)
        print("locked")
    except Alarm:
        print("interrupted %.1f" % (time.monotonic() - began))


COMMANDS = {
    "count": count,
    "recount": recount,
    "handed": handed,
    "hold": hold,
    "wait": lambda *of: hold(*of, wait=True),
    "try": attempt,
    "pair": pair,
    "interrupt": interrupt,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])
