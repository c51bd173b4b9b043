#!/usr/bin/env python3
"""A load that goes on while nodes die and others take their place: no operation fails, none is lost, none is half done.

    failover.py run DIR LOG WORKER SEED STOP
        Operates in DIR as worker number WORKER (as mixed.py does; what is written is synced) until the file STOP is there.
        LOG, outside of the file system under test, gets a line before each operation, and one with the time after it has
        returned. Any failure ends the worker.
    failover.py lock DIR LOG WORKER SEED STOP LOCKERS
        As `run`, but adds one to a counter in DIR again and again, under a lock that all of these workers take (fcntl). Each has another
        lock from the beginning to the end (flock), and looks whether those of the others, whose numbers LOCKERS are (with
        commas between them), are taken.
    failover.py counted DIR LOG...
        Compares the counter with what is in the LOGs of those that have added to it.
    failover.py verify DIR LOG WORKER FAULTS
        Replays LOG in memory and compares with what is in DIR. Of what is wrong it tells what was done to it when, between which
        faults.
    failover.py pauses FAULTS LOG...
        For each fault (a line: kind, node, seconds since the epoch) and each LOG: the longest time without an operation that
        returned, from the fault on until the next one. Prints their distribution, a line for each kind, and which were longer than
        they are to be.
"""

import fcntl
import json
import os
import random
import sys
import time

import mixed

# What happens later after a fault, in seconds, has nothing to do with it.
AROUND = 30.0
# Pauses are to be no longer, in seconds, and at median no longer than PAUSE_MEDIAN.
PAUSE_MEDIAN = 3.0
PAUSE_MAX = 6.0


def perform(top, operation):
    """As in mixed.py, but what is written is durable when this returns."""
    kind, *a = operation
    if kind not in ("write", "append"):
        mixed.perform(top, operation)
        return
    length, seed = a[-2:]
    fd = os.open(os.path.join(top, a[0]), os.O_WRONLY | (os.O_APPEND if kind == "append" else 0))
    try:
        bytes_ = mixed.data(seed, length)
        written = os.write(fd, bytes_) if kind == "append" else os.pwrite(fd, bytes_, a[1])
        os.fsync(fd)
    finally:
        os.close(fd)
    if written != length:
        raise SystemExit(f"{operation}: wrote {written} of {length} bytes")


def run(top, log, worker, seed, stop):
    rng = random.Random(seed)
    model = mixed.Model(worker)
    os.umask(0)
    os.mkdir(os.path.join(top, model.own))
    os.makedirs(os.path.join(top, model.shared), exist_ok=True)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    while not os.path.exists(stop):
        operation = model.choose(rng)
        os.write(record, b"> " + json.dumps(operation).encode() + b"\n")
        started = time.time()
        try:
            perform(top, operation)
        except OSError as error:
            took = time.time() - started
            raise SystemExit(f"worker {worker}, seed {seed}: {operation} failed after {took:.1f} s: {error}") from error
        os.write(record, f"< {time.time():.6f}\n".encode())
        model.apply(operation)


DIGITS = 20


def take(fd, lock, *range_):
    """Waits for a lock."""
    (fcntl.lockf if range_ else fcntl.flock)(fd, lock, *range_)


def add_one(fd, last):
    """Adds one to a counter under a lock, and returns it."""
    take(fd, fcntl.LOCK_EX, DIGITS, 0)
    value = int(os.pread(fd, DIGITS, 0) or b"0")
    if value < last:
        raise SystemExit(f"the counter was {last}, and is {value} now")
    os.pwrite(fd, b"%*d" % (DIGITS, value + 1), 0)
    os.fsync(fd)
    take(fd, fcntl.LOCK_UN, DIGITS, 0)
    return value + 1


def is_taken(path):
    """Somebody else has locked this file."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def lock(top, log, worker, seed, stop, lockers):
    rng, last = random.Random(seed), 0
    held = lambda of: os.path.join(top, f"held.{of}")
    others = [other for other in lockers if other != worker]
    own = os.open(held(worker), os.O_RDWR | os.O_CREAT, 0o644)
    take(own, fcntl.LOCK_EX)
    counter = os.open(os.path.join(top, "counter"), os.O_RDWR | os.O_CREAT, 0o644)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    while not os.path.exists(stop):
        other = rng.choice(others)
        os.write(record, b'> ["count"]\n')
        started = time.time()
        try:
            last = add_one(counter, last)
            # the others have theirs once they have begun to record
            if os.path.exists(f"{log.rsplit('.', 1)[0]}.{other}") and not is_taken(held(other)) and not os.path.exists(stop):
                raise SystemExit(f"worker {worker}: the lock of worker {other} was given to another one")
        except OSError as error:
            took = time.time() - started
            raise SystemExit(f"worker {worker}: under locks, after {took:.1f} s: {error}") from error
        os.write(record, f"< {time.time():.6f}\n".encode())


def counted(top, logs):
    with open(os.path.join(top, "counter")) as counter:
        value = int(counter.read())
    begun = done = 0
    for log in logs:
        with open(log) as lines:
            kinds = [line[0] for line in lines]
        begun, done = begun + kinds.count(">"), done + kinds.count("<")
    if not done <= value <= begun:
        raise SystemExit(f"the counter is {value}, after {done} additions that returned and {begun} that were begun")
    return f"{done} additions under a lock"


HISTORY_MOST = 30


def faults_of(path):
    with open(path) as lines:
        return [(kind, node, float(at)) for kind, node, at in (line.split() for line in lines)]


def history(log, names, faults):
    """Operations of a log that name one of these, with the times at which they began at the latest and had returned."""
    events = [(at, f"{kind} of node {node}") for kind, node, at in faults_of(faults)]
    last, pending = 0.0, None
    with open(log) as lines:
        for line in lines:
            if line.startswith("> "):
                pending = json.loads(line[2:])
                continue
            before, last = last, float(line[2:])
            if any(name in pending for name in names):
                events.append((last, f"{pending}, since {before:.3f}"))
    return [f"  {at:.3f} {what}" for at, what in sorted(events)[-HISTORY_MOST:]]


def verify(top, log, worker, faults):
    try:
        return mixed.verify(top, log, worker)
    except SystemExit as wrong:
        names = [line.strip().split(": found ")[0] for line in str(wrong).splitlines() if ": found " in line]
        raise SystemExit("\n".join([str(wrong), "what was done to them:", *history(log, names, faults)])) from wrong


def completions(log):
    with open(log) as lines:
        return [float(line[2:]) for line in lines if line.startswith("< ")]


def longest_pause(times, begin, end):
    """The longest time between operations that returned, from the last one before begin until end, and when it began."""
    ends = [at for at in times if at > begin] + [end]
    begins = [max((at for at in times if at <= begin), default=begin)] + ends
    return max((min(later, end) - earlier, earlier) for earlier, later in zip(begins, ends) if earlier < end)


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def shown(pauses):
    return (f"median {quantile(pauses, 0.5):.2f} s, p90 {quantile(pauses, 0.9):.2f} s, max {max(pauses):.2f} s "
            f"of {len(pauses)}")


def operation_after(log, at):
    """The operation of a log that was the next one to return after a time."""
    pending = None
    with open(log) as lines:
        for line in lines:
            if line.startswith("> "):
                pending = line[2:].strip()
            elif float(line[2:]) > at:
                break
    return pending


def pauses(faults, logs):
    faults = faults_of(faults)
    all_times = [(log, times) for log in logs if len(times := completions(log)) > 1]
    found, long = {}, []
    for (kind, node, begin), following in zip(faults, [at for *_, at in faults[1:]] + [float("inf")]):
        for log, times in all_times:
            # a worker of another round was not there
            if times[0] < begin < times[-1]:
                pause, since = longest_pause(times, begin, min(begin + AROUND, following, times[-1]))
                found.setdefault(kind, []).append(pause)
                if pause > PAUSE_MAX:
                    what = f"{os.path.basename(log)} since {since:.3f}: {operation_after(log, since)}"
                    long.append(f"{kind} of node {node} at {begin:.3f}, {pause:.2f} s in {what}")
    for kind, values in sorted(found.items()):
        print(f"{kind}: {shown(values)}")
        if (median := quantile(values, 0.5)) > PAUSE_MEDIAN:
            long.append(f"{median:.2f} s at median around a {kind}")
    for pause in long:
        print(f"long: {pause}")


def main(arguments):
    match arguments:
        case ["run", top, log, worker, seed, stop]:
            run(top, log, int(worker), int(seed), stop)
        case ["lock", top, log, worker, seed, stop, lockers]:
            lock(top, log, int(worker), int(seed), stop, [int(number) for number in lockers.split(",")])
        case ["counted", top, *logs]:
            print(counted(top, logs))
        case ["verify", top, log, worker, faults]:
            print(verify(top, log, int(worker), faults))
        case ["pauses", faults, *logs]:
            pauses(faults, logs)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
