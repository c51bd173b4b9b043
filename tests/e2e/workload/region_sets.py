#!/usr/bin/env python3
"""Files in directories of several region sets.

    region_sets.py turn DIR SETS        what is made in DIR from now on goes to regions of that set
    region_sets.py fill DIR COUNT       COUNT files in DIR, which is made if need be
    region_sets.py check DIR            all below DIR are as they were written
    region_sets.py kept DIR REPLICAS    all below DIR lie in regions that are to have so many replicas
    region_sets.py count DIR SECONDS    prints how many below DIR cannot be read, each within SECONDS
"""

import errno
import hashlib
import os
import subprocess
import sys

ATTRIBUTE = "user.polvo.regions"
COUNT = ".count"


def contents(name):
    """What a file holds: some 100 bytes to 40 kB, by its name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return digest * (3 + int.from_bytes(digest[:2], "big") % 1250)


def files_below(top):
    for path, _, files in os.walk(top, onerror=lambda error: sys.exit(str(error))):
        if COUNT in files:
            with open(os.path.join(path, COUNT)) as file:
                expected = int(file.read())
            if len(files) != expected + 1:
                sys.exit(f"{path} has {len(files) - 1} files, and had {expected}")
        for name in files:
            if name != COUNT:
                yield os.path.join(path, name)


def fill(top, count):
    os.makedirs(top, exist_ok=True)
    for number in range(count):
        name = f"{os.path.basename(top)}-{number}"
        with open(os.path.join(top, name), "xb") as file:
            file.write(contents(name))
    with open(os.path.join(top, COUNT), "x") as file:
        file.write(str(count))


def check(top):
    for path in files_below(top):
        with open(path, "rb") as file:
            if file.read() != contents(os.path.basename(path)):
                sys.exit(f"{path} holds something else")


def kept(top, replicas):
    for path in files_below(top):
        said = os.getxattr(path, ATTRIBUTE).decode()
        if said.split()[0] != f"replicas={replicas}":
            sys.exit(f"{path} is kept with {said}, not replicas={replicas}")


def count(top, seconds):
    """Each in a process of its own, which may have to be ended: it waits for a node, or is told after a while."""
    missing = 0
    for path in os.listdir(top):
        path = os.path.join(top, path)
        if os.path.basename(path) == COUNT or not path.rsplit("-", 1)[-1].isdigit():
            continue
        try:
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            missing += 1
    print(missing)


def main():
    what, top, *rest = sys.argv[1:]
    if what == "turn":
        try:
            os.setxattr(top, ATTRIBUTE, rest[0].encode())
        except OSError as error:
            sys.exit(f"{top}: {error.strerror}" if error.errno == errno.EINVAL else str(error))
    elif what == "fill":
        fill(top, int(rest[0]))
    elif what == "check":
        check(top)
    elif what == "kept":
        kept(top, int(rest[0]))
    elif what == "count":
        count(top, float(rest[0]))
    else:
        sys.exit(__doc__)


main()
