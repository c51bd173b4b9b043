#!/usr/bin/env python3
"""LMDB with writers that are killed: every committed entry is there, and the tree is whole.

    lmdb_load.py DIR file|map TRANSACTIONS SEED

Three processes write to one environment, through the file or (map) through a writable mapping, while a fourth is killed
(SIGKILL) again and again. They share the lock file and its mutexes. Then every entry that had been committed is there with
its bytes, the counts of both tables agree, and a compacted copy holds the same.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import lmdb

STEADY = 3


def open_environment(path, mode):
    return lmdb.open(path, map_size=256 << 20, max_dbs=2, writemap=mode == "map", sync=True, metasync=True)


def content(key):
    rng = random.Random(key)
    return rng.randbytes(rng.choice((20, 300, 9000)))


def worker(path, mode, name, transactions):
    """A line to standard output after each commit."""
    environment = open_environment(path, mode)
    data, index = environment.open_db(b"data"), environment.open_db(b"index")
    for number in range(transactions):
        with environment.begin(write=True) as transaction:
            for part in range(3):
                key = f"{name}:{number}:{part}"
                transaction.put(key.encode(), content(key), db=data)
                transaction.put(content(key)[:16] + key.encode(), key.encode(), db=index)
            if number >= 50:  # old ones go
                for part in range(3):
                    key = f"{name}:{number - 50}:{part}"
                    transaction.delete(key.encode(), db=data)
                    transaction.delete(content(key)[:16] + key.encode(), db=index)
        os.write(1, b".")
    environment.close()


def verify(path, mode, committed):
    environment = open_environment(path, mode)
    data, index = environment.open_db(b"data"), environment.open_db(b"index")
    with environment.begin() as transaction:
        there = {bytes(key).decode(): bytes(value) for key, value in transaction.cursor(db=data)}
        pointed = sorted(bytes(value).decode() for _, value in transaction.cursor(db=index))
        counts = transaction.stat(data)["entries"], transaction.stat(index)["entries"]
    environment.close()
    if pointed != sorted(there) or counts != (len(there), len(there)):
        raise SystemExit(f"{len(there)} entries, {len(pointed)} in the index, counted {counts}")
    for key, value in there.items():
        if value != content(key):
            raise SystemExit(f"{key} holds something else")
    for name, count in committed.items():
        for number in range(max(0, count - 49), count):
            for part in range(3):
                if f"{name}:{number}:{part}" not in there:
                    raise SystemExit(f"{name}: {count} were committed, number {number} is not there")
    return there


def load(directory, mode, transactions, seed):
    rng = random.Random(seed)
    path = f"{directory}/lmdb-{mode}"
    os.mkdir(path)
    environment = open_environment(path, mode)
    environment.open_db(b"data")
    environment.open_db(b"index")
    environment.close()

    def start(name, count):
        return subprocess.Popen([sys.executable, __file__, "worker", path, mode, name, str(count)], stdout=subprocess.PIPE)

    began = time.monotonic()
    workers = {f"steady{n}": start(f"steady{n}", transactions // STEADY) for n in range(STEADY)}
    committed, kills = {}, 0
    while any(process.poll() is None for process in workers.values()) and kills < 100:
        victim = start(f"victim{kills}", 1_000_000)
        seen = victim.stdout.read(rng.randrange(1, 20))
        victim.send_signal(signal.SIGKILL)
        committed[f"victim{kills}"] = len(seen) + len(victim.stdout.read())
        victim.wait()
        kills += 1
    for name, process in workers.items():
        committed[name] = len(process.stdout.read())
        if process.wait() != 0 or committed[name] != transactions // STEADY:
            raise SystemExit(f"{name}: {committed[name]} commits, exit status {process.returncode}")
    seconds = time.monotonic() - began
    there = verify(path, mode, committed)

    os.mkdir(f"{path}.copy")
    environment = open_environment(path, mode)
    environment.copy(f"{path}.copy", compact=True)
    environment.close()
    if verify(f"{path}.copy", "file", committed) != there:
        raise SystemExit("the compacted copy differs")
    shutil.rmtree(f"{path}.copy")
    print(f"{sum(committed.values())} transactions, {sum(committed.values()) / seconds:.0f}/s, {kills} writers killed, "
          f"{len(there)} entries there (seed {seed})")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", path, mode, name, transactions]:
            worker(path, mode, name, int(transactions))
        case [directory, ("file" | "map") as mode, transactions, seed]:
            load(directory, mode, int(transactions), int(seed))
        case _:
            raise SystemExit(__doc__)
