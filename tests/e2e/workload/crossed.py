#!/usr/bin/env python3
"""Creates and removes names of its own in two directories that others fill and empty from another mount.

    crossed.py TOP NAME SEED SECONDS     prints operations done, and the longest in seconds

Every operation succeeds, and none takes longer than LONGEST seconds.
"""

import os
import random
import sys
import time

LONGEST = 0.5


def main():
    top, name, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    rng = random.Random(seed)
    mine = []
    done, longest = 0, 0.0
    made = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        create = not mine or (len(mine) < 50 and rng.randrange(2))
        if create:
            path = os.path.join(top, rng.choice("ab"), f"{name}.{made}")
            made += 1
        else:
            path = mine.pop(rng.randrange(len(mine)))
        began = time.monotonic()
        if create:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            mine.append(path)
        else:
            os.unlink(path)
        took = time.monotonic() - began
        longest = max(longest, took)
        if took > LONGEST:
            raise SystemExit(f"{'creating' if create else 'removing'} {path} took {took:.3f} s")
        done += 1
    for path in mine:
        os.unlink(path)
    print(done, f"{longest:.3f}")


main()
