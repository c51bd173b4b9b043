#!/usr/bin/env python3
"""A bank in SQLite: several processes move money while some of them are killed; no money is lost.

    sqlite_load.py DIR delete|truncate|persist|wal TRANSFERS SEED

Three processes transfer between accounts in transactions of their own; a fourth is killed (SIGKILL) in the middle
again and again, so that its journal or its WAL frames are recovered by the others. Then: integrity_check is ok, the sum
is what it was, and every transfer that had been committed is in the ledger.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

ACCOUNTS = 200
MONEY = 1000


def connect(path):
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def worker(path, name, transfers, seed):
    """Transfers until done; writes a line to standard output after each commit."""
    rng = random.Random(seed)
    connection = connect(path)
    for number in range(transfers):
        source, target = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 50)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE account SET money = money - ? WHERE id = ?", (amount, source))
        connection.execute("UPDATE account SET money = money + ? WHERE id = ?", (amount, target))
        connection.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)",
                           (name, number, source, target, amount, "x" * rng.randrange(600)))
        connection.execute("COMMIT")
        os.write(1, b".")
        if number % 25 == 0:
            total = connection.execute("SELECT sum(money) FROM account").fetchone()[0]
            if total != ACCOUNTS * MONEY:
                raise SystemExit(f"{name}: {total} money in the middle")
    connection.close()


def load(directory, mode, transfers, seed):
    rng = random.Random(seed)
    path = os.path.join(directory, f"bank-{mode}.db")
    connection = connect(path)
    got = connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
    if got != mode:
        raise SystemExit(f"journal mode {mode} was refused: SQLite uses {got}")
    connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER NOT NULL)")
    connection.execute("CREATE TABLE ledger (worker, number, source, target, amount, filler)")
    connection.execute("CREATE INDEX ledger_by_source ON ledger (source, amount)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO account VALUES (?, ?)", [(n, MONEY) for n in range(ACCOUNTS)])
    connection.execute("COMMIT")
    connection.close()

    def start(name, count):
        command = [sys.executable, __file__, "worker", path, name, str(count), str(rng.getrandbits(32))]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    began = time.monotonic()
    workers = {f"steady{n}": start(f"steady{n}", transfers // 3) for n in range(3)}
    committed, kills = {}, 0
    while any(process.poll() is None for process in workers.values()) and kills < 200:
        victim = start(f"victim{kills}", 1_000_000)
        seen = victim.stdout.read(rng.randrange(1, 30))
        victim.send_signal(signal.SIGKILL)
        committed[f"victim{kills}"] = len(seen) + len(victim.stdout.read())
        victim.wait()
        kills += 1
    for name, process in workers.items():
        committed[name] = len(process.stdout.read())
        if process.wait() != 0 or committed[name] != transfers // 3:
            raise SystemExit(f"{name}: {committed[name]} commits, exit status {process.returncode}")
    seconds = time.monotonic() - began

    connection = connect(path)
    verdict = connection.execute("PRAGMA integrity_check").fetchall()
    if verdict != [("ok",)]:
        raise SystemExit(f"integrity_check: {verdict}")
    total = connection.execute("SELECT sum(money) FROM account").fetchone()[0]
    if total != ACCOUNTS * MONEY:
        raise SystemExit(f"{total} money left of {ACCOUNTS * MONEY}")
    for name, count in committed.items():
        rows = connection.execute("SELECT count(*) FROM ledger WHERE worker = ?", (name,)).fetchone()[0]
        if rows not in (count, count + (1 if name.startswith("victim") else 0)):
            raise SystemExit(f"{name}: {rows} transfers in the ledger, {count} were committed")
    connection.close()
    rate = sum(committed.values()) / seconds
    print(f"sqlite {mode}: {sum(committed.values())} transactions, {rate:.0f}/s, {kills} writers killed, "
          f"integrity_check ok (seed {seed})")


def main(arguments):
    match arguments:
        case ["worker", path, name, transfers, seed]:
            worker(path, name, int(transfers), int(seed))
        case [directory, mode, transfers, seed]:
            load(directory, mode, int(transfers), int(seed))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
