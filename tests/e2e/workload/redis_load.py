#!/usr/bin/env python3
"""Redis that is killed: every key whose SET was acknowledged is there after the restart.

    redis_load.py DIR SOCKET KILLS SEED

The server keeps an append-only file in DIR that it syncs before it answers (appendfsync always), and rewrites it now and
then. Four clients set and change keys over the Unix socket SOCKET; the server is killed (SIGKILL) under them KILLS times.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
CLIENTS = 4
KEYS = 2000


class Client:
    """As much of the protocol as is needed."""

    def __init__(self, path):
        self.end = socket.socket(socket.AF_UNIX)
        self.end.settimeout(60)
        self.end.connect(path)
        self.answers = self.end.makefile("rb")

    def __call__(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.end.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        line = self.answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server is gone")
        if line.startswith(b"$"):
            return None if line == b"$-1\r\n" else self.answers.read(int(line[1:]) + 2)[:-2]
        if line.startswith(b"-"):
            raise RuntimeError(line.decode())
        return line[1:-2]


def value(client, number, version):
    rng = random.Random(f"{client} {number} {version}")
    return f"{version}:".encode() + rng.randbytes(rng.choice((10, 200, 5000)))


def start(directory, path):
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--dir", directory, "--appendonly", "yes",
         "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no", "--logfile", ""],
        stdout=open(f"{path}.log", "ab"), stderr=subprocess.STDOUT,
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))  # it does not stay when this test is ended
    deadline = time.monotonic() + 60
    while True:
        try:
            if Client(path)("PING") == b"PONG":
                return server
        except (OSError, RuntimeError):  # not yet there, or loading
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise SystemExit(f"redis-server does not start: {open(f'{path}.log').read()[-2000:]}")
        time.sleep(0.02)


def load(directory, path, kills, seed):
    rng = random.Random(seed)
    acknowledged = [{} for _ in range(CLIENTS)]  # key number to version
    tried = [{} for _ in range(CLIENTS)]
    answers = [0] * CLIENTS
    wrong = []

    def work(client, generator):
        try:
            ask = Client(path)
            while True:
                number = generator.randrange(KEYS)
                version = tried[client].get(number, 0) + 1
                tried[client][number] = version
                if ask("SET", f"{client}:{number}", value(client, number, version)) != b"OK":
                    raise RuntimeError("SET was not answered with OK")
                acknowledged[client][number] = version
                answers[client] += 1
        except OSError:
            pass  # killed
        except RuntimeError as error:
            wrong.append(str(error))

    def verify():
        ask = Client(path)
        for client in range(CLIENTS):
            for number, last in tried[client].items():
                found = ask("GET", f"{client}:{number}")
                oldest = acknowledged[client].get(number, 0)
                versions = [version for version in range(oldest, last + 1)
                            if found == (value(client, number, version) if version else None)]
                if not versions:
                    raise SystemExit(f"key {client}:{number}: found {found and found[:20]!r}, acknowledged was {oldest}, "
                                     f"tried {last} (seed {seed})")
                # what was not acknowledged and is there stays there
                acknowledged[client][number] = versions[-1]

    began = time.monotonic()
    server = start(directory, path)
    try:
        for kill in range(kills):
            workers = [threading.Thread(target=work, args=(n, random.Random(rng.getrandbits(32)))) for n in range(CLIENTS)]
            before = sum(answers)
            for worker in workers:
                worker.start()
            enough = before + rng.randrange(300, 1500)
            rewrite = before + rng.randrange(300) if kill % 2 else None
            deadline = time.monotonic() + 120
            while sum(answers) < enough and any(worker.is_alive() for worker in workers):
                if rewrite is not None and sum(answers) >= rewrite:
                    Client(path)("BGREWRITEAOF")
                    rewrite = None
                if time.monotonic() > deadline:
                    wrong.append(f"only {sum(answers) - before} answers in 120 s")
                    break
                time.sleep(0.001)
            server.send_signal(signal.SIGKILL)
            server.wait()
            for worker in workers:
                worker.join()
            if wrong:
                raise SystemExit(f"{wrong[0]}: {open(f'{path}.log').read()[-1000:]}")
            server = start(directory, path)
            verify()
    finally:
        server.kill()
        server.wait()
    checked = subprocess.run(["redis-check-aof", *manifest(directory)], capture_output=True, text=True)
    if checked.returncode != 0:
        raise SystemExit(f"redis-check-aof: {checked.stdout[-1000:]}")
    print(f"{sum(answers)} keys set in {time.monotonic() - began:.1f} s, {kills} kills, all acknowledged ones there "
          f"(seed {seed})")


def manifest(directory):
    """What redis-check-aof is to look at: the manifest of Redis 7, the file of older ones."""
    for path in (f"{directory}/appendonlydir/appendonly.aof.manifest", f"{directory}/appendonly.aof"):
        if os.path.exists(path):
            return [path]
    raise SystemExit("no append-only file")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [directory, path, kills, seed]:
            load(directory, path, int(kills), int(seed))
        case _:
            raise SystemExit(__doc__)
