#!/usr/bin/env python3
"""Several mounts of one file system see each other's completed operations at once.

    coherence.py ROUNDS SEED DIR DIR...    (the same directory as seen through each mount)

Every step does one operation through one mount, picked at random, and then looks at its effect through every one
of them: by name, through a descriptor opened before the operation, by stat, in a directory listing. Nothing waits or
tries again: what is not seen at the first look is a failure.
"""

import errno
import mmap
import os
import random
import stat
import sys


class Checker:
    def __init__(self, seed, mounts):
        self.random = random.Random(seed)
        self.mounts = mounts
        self.looks = 0
        self.serial = 0

    def expect(self, what, seen, wanted):
        self.looks += 1
        if seen != wanted:
            show = lambda value: repr(value)[:200]
            raise SystemExit(f"{what}: saw {show(seen)}, expected {show(wanted)}")

    def expect_errno(self, what, number, call):
        self.looks += 1
        try:
            call()
        except OSError as error:
            if error.errno == number:
                return
            raise SystemExit(f"{what}: {error}, expected {errno.errorcode[number]}")
        raise SystemExit(f"{what}: succeeded, expected {errno.errorcode[number]}")

    def name(self):
        self.serial += 1
        return f"n{self.serial:05d}"

    def bytes(self, most=20000):
        return self.random.randbytes(self.random.randrange(1, most))


def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_fd(fd, length):
    """All of the first `length` bytes and whatever follows."""
    data = b""
    while True:
        more = os.pread(fd, max(length - len(data), 0) + 100, len(data))
        if not more:
            return data
        data += more


def one_file(c, round_):
    """The life of a file: create, write, overwrite, append, truncate, extend, mode, owner, times, links, unlink."""
    who = lambda: c.random.choice(c.mounts)
    name = c.name()
    data = bytearray(c.bytes())

    def seen_everywhere(step, actor):
        for mount in c.mounts:
            where = f"round {round_}, {step} through {actor}, seen through {mount}"
            path = f"{mount}/{name}"
            c.expect(f"{where}: size", os.stat(path).st_size, len(data))
            c.expect(f"{where}: bytes", read(path), bytes(data))
            if mount in fds:
                c.expect(f"{where}: bytes through an old descriptor", read_fd(fds[mount], len(data)), bytes(data))
                c.expect(f"{where}: fstat of an old descriptor", os.fstat(fds[mount]).st_size, len(data))

    fds = {}
    actor = who()
    with open(f"{actor}/{name}", "xb", buffering=0) as file:
        file.write(data)
    seen_everywhere("create", actor)
    for mount in c.mounts:
        c.expect(f"round {round_}: listed through {mount}", name in os.listdir(mount), True)
        c.expect_errno(f"round {round_}: O_EXCL through {mount}", errno.EEXIST, lambda: open(f"{mount}/{name}", "x"))
        fds[mount] = os.open(f"{mount}/{name}", os.O_RDWR)

    steps = ["overwrite", "append", "shrink", "extend", "mmap"] * 2
    c.random.shuffle(steps)
    for step in steps:
        actor = who()
        fd = fds[actor]
        if step == "overwrite":
            at, new = c.random.randrange(len(data) + 5000), c.bytes(9000)
            os.pwrite(fd, new, at)
            data.extend(bytes(max(0, at - len(data))))
            data[at : at + len(new)] = new
        elif step == "append":
            new = c.bytes(5000)
            with open(f"{actor}/{name}", "ab", buffering=0) as file:
                file.write(new)
            data += new
        elif step == "shrink":
            length = c.random.randrange(len(data) + 1)
            os.ftruncate(fd, length)
            del data[length:]
        elif step == "extend":
            length = len(data) + c.random.randrange(1, 9000)
            os.truncate(f"{actor}/{name}", length)
            data.extend(bytes(length - len(data)))
        elif step == "mmap" and data:
            with mmap.mmap(fd, len(data)) as mapping:
                c.expect(f"round {round_}: mapping through {actor}", mapping[:], bytes(data))
                at = c.random.randrange(len(data))
                new = c.bytes(3000)[: len(data) - at]
                mapping[at : at + len(new)] = new
                mapping.flush()
                data[at : at + len(new)] = new
        seen_everywhere(step, actor)

    actor = who()
    os.chmod(f"{actor}/{name}", 0o640 if round_ % 2 else 0o604)
    os.utime(f"{actor}/{name}", ns=(round_ * 10**9 + 7, -round_ * 10**9 - 750_000_000))
    if os.geteuid() == 0:
        os.chown(f"{actor}/{name}", 1000 + round_, 2000 + round_)
    os.setxattr(f"{actor}/{name}", "user.round", str(round_).encode())
    os.link(f"{actor}/{name}", f"{actor}/{name}.hard")
    os.symlink(name, f"{actor}/{name}.soft")
    for mount in c.mounts:
        where = f"round {round_}, attributes set through {actor}, seen through {mount}"
        seen = os.stat(f"{mount}/{name}")
        c.expect(f"{where}: mode", stat.S_IMODE(seen.st_mode), 0o640 if round_ % 2 else 0o604)
        c.expect(f"{where}: atime", seen.st_atime_ns, round_ * 10**9 + 7)
        c.expect(f"{where}: mtime", seen.st_mtime_ns, -round_ * 10**9 - 750_000_000)
        if os.geteuid() == 0:
            c.expect(f"{where}: owner", (seen.st_uid, seen.st_gid), (1000 + round_, 2000 + round_))
        c.expect(f"{where}: links", seen.st_nlink, 2)
        c.expect(f"{where}: same inode", os.stat(f"{mount}/{name}.hard").st_ino, seen.st_ino)
        c.expect(f"{where}: xattr", os.getxattr(f"{mount}/{name}", "user.round"), str(round_).encode())
        c.expect(f"{where}: symlink", os.readlink(f"{mount}/{name}.soft"), name)

    actor = who()
    os.unlink(f"{actor}/{name}.hard")
    os.unlink(f"{actor}/{name}.soft")
    os.unlink(f"{actor}/{name}")
    for mount in c.mounts:
        where = f"round {round_}, unlink through {actor}, seen through {mount}"
        c.expect_errno(where, errno.ENOENT, lambda: os.stat(f"{mount}/{name}"))
        c.expect(f"{where}: listing", [n for n in os.listdir(mount) if n.startswith(name)], [])
        c.expect(f"{where}: still open", read_fd(fds[mount], len(data)), bytes(data))
        c.expect(f"{where}: links", os.fstat(fds[mount]).st_nlink, 0)
    for fd in fds.values():
        os.close(fd)


def directories(c, round_):
    """Renames across directories, over existing files, and of directories; mkdir and rmdir."""
    who = lambda: c.random.choice(c.mounts)
    top = c.name()
    actor = who()
    os.mkdir(f"{actor}/{top}")
    for sub in ("a", "b"):
        actor = who()
        os.mkdir(f"{actor}/{top}/{sub}")
    contents = {}
    for number in range(4):
        actor, path = who(), f"{'ab'[number % 2]}/f{number}"
        contents[path] = c.bytes(3000)
        with open(f"{actor}/{top}/{path}", "wb") as file:
            file.write(contents[path])

    def tree_everywhere(step, actor):
        for mount in c.mounts:
            where = f"round {round_}, {step} through {actor}, seen through {mount}"
            found = {}
            for directory, _, files in os.walk(f"{mount}/{top}"):
                for file in files:
                    path = os.path.join(directory, file)
                    found[os.path.relpath(path, f"{mount}/{top}")] = read(path)
            c.expect(where, found, contents)

    tree_everywhere("writes", actor)
    for step in range(6):
        actor = who()
        old = c.random.choice(sorted(contents))
        if step % 2:
            new = c.random.choice(sorted(set(contents) - {old}))  # over an existing file
        else:
            new = f"{c.random.choice('ab')}/r{step}"
        os.rename(f"{actor}/{top}/{old}", f"{actor}/{top}/{new}")
        contents[new] = contents.pop(old)
        tree_everywhere(f"rename {old} {new}", actor)
        for mount in c.mounts:
            c.expect_errno(f"round {round_}: the old name through {mount}", errno.ENOENT,
                           lambda: open(f"{mount}/{top}/{old}"))
    actor = who()
    os.rename(f"{actor}/{top}/b", f"{actor}/{top}/a/c")
    contents = {path.replace("b/", "a/c/") if path.startswith("b/") else path: data for path, data in contents.items()}
    tree_everywhere("rename of a directory", actor)
    actor = who()
    c.expect_errno(f"round {round_}: rmdir of a full directory", errno.ENOTEMPTY, lambda: os.rmdir(f"{actor}/{top}"))
    for path in sorted(contents):
        os.unlink(f"{who()}/{top}/{path}")
    for path in ("a/c", "a", ""):
        actor = who()
        os.rmdir(f"{actor}/{top}/{path}")
        for mount in c.mounts:
            c.expect_errno(f"round {round_}: rmdir {path} through {actor}, seen through {mount}", errno.ENOENT,
                           lambda: os.stat(f"{mount}/{top}/{path}"))


def main(arguments):
    if len(arguments) < 3:
        raise SystemExit(__doc__)
    rounds, seed, mounts = int(arguments[0]), int(arguments[1]), arguments[2:]
    checker = Checker(seed, mounts)
    for round_ in range(rounds):
        one_file(checker, round_)
        directories(checker, round_)
    left = [os.listdir(mount) for mount in mounts]
    if any(left):
        raise SystemExit(f"left over: {left}")
    print(f"seed {seed}: {rounds} rounds, {checker.looks} looks through {len(mounts)} mounts, all saw what had been done")


if __name__ == "__main__":
    main(sys.argv[1:])
