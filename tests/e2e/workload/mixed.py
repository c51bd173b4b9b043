#!/usr/bin/env python3
"""A workload whose every returned operation is on record, and the proof that none was lost and none is half done.

    mixed.py run DIR LOG WORKER SEED OPERATIONS KILLING
        Operates in DIR as worker number WORKER until it has done OPERATIONS, is killed, or an operation fails. LOG,
        outside of the file system under test, gets a line before each operation and one after it has returned. A
        failure is an error only while the file KILLING does not exist.
    mixed.py verify DIR LOG WORKER
        Replays LOG in memory and compares with what is in DIR: everything that had returned is there, and the one
        operation that had not is there as a whole or not at all.

Each worker has a directory tree of its own and names of its own in a directory shared by all. Operations: create,
write (up to 300 kB in one call, overwriting, extending, leaving holes), append, truncate, rename (of files, over
files, of directories, across directories), exchange, link, symlink, unlink, mkdir, rmdir, chmod, setxattr.
"""

import ctypes
import hashlib
import json
import os
import random
import stat
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
FILE_MOST = 1 << 20


def data(seed, length):
    return random.Random(seed).randbytes(length)


class File:
    """A regular file in the model."""

    def __init__(self, mode):
        self.mode, self.bytes, self.links, self.xattr = mode, bytearray(), 1, None


class Model:
    """What the worker's part of the file system should look like. Names map to a File, a symlink's target or a set of
    a directory's names."""

    def __init__(self, worker):
        self.worker = worker
        self.own, self.shared = f"w{worker}", "shared"
        self.names = {self.own: "directory"}
        self.serial = 0

    def of_kind(self, kind):
        return sorted(name for name, what in self.names.items() if self.kind(what) == kind)

    @staticmethod
    def kind(what):
        return "file" if isinstance(what, File) else what[0] if isinstance(what, tuple) else what

    def children(self, directory):
        return [name for name in self.names if os.path.dirname(name) == directory]

    # The operations, each on the model and on the file system.

    def do_create(self, name, mode):
        self.names[name] = File(mode)

    def do_write(self, name, offset, length, seed):
        bytes_ = self.names[name].bytes
        bytes_.extend(bytes(max(0, offset - len(bytes_))))
        bytes_[offset : offset + length] = data(seed, length)

    def do_append(self, name, length, seed):
        self.names[name].bytes += data(seed, length)

    def do_truncate(self, name, length):
        bytes_ = self.names[name].bytes
        del bytes_[length:]
        bytes_.extend(bytes(length - len(bytes_)))

    def do_chmod(self, name, mode):
        self.names[name].mode = mode

    def do_setxattr(self, name, value):
        self.names[name].xattr = value

    def do_link(self, old, new):
        self.names[new] = self.names[old]
        self.names[new].links += 1

    def do_symlink(self, target, name):
        self.names[name] = ("symlink", target)

    def do_unlink(self, name):
        what = self.names.pop(name)
        if isinstance(what, File):
            what.links -= 1

    def do_mkdir(self, name):
        self.names[name] = "directory"

    def do_rmdir(self, name):
        del self.names[name]

    def do_rename(self, old, new):
        if self.names.get(new) is self.names[old] and isinstance(self.names[old], File):
            return  # two names of one file: rename does nothing
        if new in self.names:
            self.do_unlink(new)
        moved = {name: what for name, what in self.names.items() if name == old or name.startswith(old + "/")}
        for name in moved:
            del self.names[name]
        for name, what in moved.items():
            self.names[new + name[len(old) :]] = what

    def do_exchange(self, one, other):
        self.names[one], self.names[other] = self.names[other], self.names[one]

    def apply(self, operation):
        getattr(self, "do_" + operation[0])(*operation[1:])

    def snapshot(self):
        """What a look at the file system should find: name to a description."""
        found = {}
        for name, what in self.names.items():
            if isinstance(what, File):
                digest = hashlib.sha256(what.bytes).hexdigest()[:16]
                found[name] = f"file mode {what.mode:o} links {what.links} size {len(what.bytes)} {digest} {what.xattr}"
            elif what == "directory":
                subdirectories = sum(self.names[child] == "directory" for child in self.children(name))
                found[name] = f"directory links {2 + subdirectories}"
            else:
                found[name] = f"symlink to {what[1]}"
        return found

    # Choosing the next operation.

    def new_name(self, rng, directories_only=False):
        self.serial += 1
        directories = self.of_kind("directory")
        if not directories_only and rng.random() < 0.3:
            return f"{self.shared}/w{self.worker}-{self.serial}"
        return f"{rng.choice(directories)}/{'d' if directories_only else 'f'}{self.serial}"

    def choose(self, rng):
        files, directories = self.of_kind("file"), self.of_kind("directory")
        if len(files) < 5:
            return ("create", self.new_name(rng), 0o644)
        file = rng.choice(files)
        size = len(self.names[file].bytes)
        seed = rng.getrandbits(48)
        roll = rng.randrange(100)
        if roll < 15 and len(files) < 60:
            return ("create", self.new_name(rng), rng.choice([0o600, 0o644, 0o4755]))
        if roll < 35:
            length = rng.choice([1, 64, 100, 4096, 8192, 5000, 70000, 300000])
            return ("write", file, rng.randrange(min(size + 10000, FILE_MOST - length)), length, seed)
        if roll < 50 and size < FILE_MOST:
            return ("append", file, rng.choice([1, 50, 4096, 10000, 100000]), seed)
        if roll < 56:
            return ("truncate", file, rng.randrange(size + 5000) if size < FILE_MOST else 0)
        if roll < 60:
            return ("chmod", file, rng.choice([0o600, 0o755, 0o2755]))
        if roll < 63:
            return ("setxattr", file, f"{seed:x}")
        if roll < 68 and len(files) < 60:
            return ("link", file, self.new_name(rng))
        if roll < 71:
            return ("symlink", f"target-{seed:x}", self.new_name(rng))
        if roll < 78:
            return ("unlink", rng.choice(files + self.of_kind("symlink")))
        if roll < 82 and len(directories) < 12:
            return ("mkdir", self.new_name(rng, directories_only=True))
        if roll < 85:
            empty = [d for d in directories if d != self.own and not self.children(d)]
            return ("rmdir", rng.choice(empty)) if empty else ("mkdir", self.new_name(rng, directories_only=True))
        if roll < 88 and len(directories) > 2:
            old = rng.choice([d for d in directories if d != self.own])
            into = [d for d in directories if d != old and not d.startswith(old + "/")]
            self.serial += 1
            return ("rename", old, f"{rng.choice(into)}/d{self.serial}")
        if roll < 91:
            other = rng.choice(files)
            if other != file:
                return ("exchange", file, other)
        if roll < 95:
            return ("rename", file, rng.choice(files))
        return ("rename", file, self.new_name(rng))


def perform(top, operation):
    """One system call that changes something (opening and closing around it does not)."""
    kind, *a = operation
    path = lambda name: os.path.join(top, name)
    if kind in ("write", "append"):
        length, seed = a[-2:]
        fd = os.open(path(a[0]), os.O_WRONLY | (os.O_APPEND if kind == "append" else 0))
        try:
            bytes_ = data(seed, length)
            written = os.write(fd, bytes_) if kind == "append" else os.pwrite(fd, bytes_, a[1])
        finally:
            os.close(fd)
        if written != length:
            raise SystemExit(f"{operation}: wrote {written} of {length} bytes")
    elif kind == "create":
        os.close(os.open(path(a[0]), os.O_WRONLY | os.O_CREAT | os.O_EXCL, a[1]))
    elif kind == "truncate":
        os.truncate(path(a[0]), a[1])
    elif kind == "chmod":
        os.chmod(path(a[0]), a[1])
    elif kind == "setxattr":
        os.setxattr(path(a[0]), "user.mixed", a[1].encode())
    elif kind == "link":
        os.link(path(a[0]), path(a[1]))
    elif kind == "symlink":
        os.symlink(a[0], path(a[1]))
    elif kind == "unlink":
        os.unlink(path(a[0]))
    elif kind == "mkdir":
        os.mkdir(path(a[0]))
    elif kind == "rmdir":
        os.rmdir(path(a[0]))
    elif kind == "rename":
        os.rename(path(a[0]), path(a[1]))
    elif kind == "exchange":
        names = [os.fsencode(path(name)) for name in a]
        if LIBC.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path(a[0]))
    else:
        raise SystemExit(f"unknown operation {kind}")


def run(top, log, worker, seed, operations, killing):
    rng = random.Random(seed)
    model = Model(worker)
    os.umask(0)
    os.mkdir(os.path.join(top, model.own))
    os.makedirs(os.path.join(top, model.shared), exist_ok=True)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    for _ in range(operations):
        operation = model.choose(rng)
        os.write(record, b"> " + json.dumps(operation).encode() + b"\n")
        try:
            perform(top, operation)
        except OSError as error:
            if not os.path.exists(killing):
                raise SystemExit(f"worker {worker}, seed {seed}: {operation}: {error}")
            return
        os.write(record, b"<\n")
        model.apply(operation)


def look(top, model):
    """What is really there, described as `Model.snapshot` does."""
    found = {}

    def describe(name):
        path = os.path.join(top, name)
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            digest = hashlib.sha256()
            with open(path, "rb", buffering=0) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            try:
                xattr = os.getxattr(path, "user.mixed").decode()
            except OSError:
                xattr = None
            mode = stat.S_IMODE(status.st_mode)
            shown = f"file mode {mode:o} links {status.st_nlink} size {status.st_size} {digest.hexdigest()[:16]} {xattr}"
        elif stat.S_ISDIR(status.st_mode):
            shown = f"directory links {status.st_nlink}"
        elif stat.S_ISLNK(status.st_mode):
            shown = f"symlink to {os.readlink(path)}"
        else:
            shown = f"mode {status.st_mode:o}"
        found[name] = shown
        return shown.startswith("directory")

    def walk(directory):
        for name in os.listdir(os.path.join(top, directory)):
            if describe(f"{directory}/{name}"):
                walk(f"{directory}/{name}")

    if describe(model.own):
        walk(model.own)
    for name in os.listdir(os.path.join(top, model.shared)):
        if name.startswith(f"w{model.worker}-"):
            describe(f"{model.shared}/{name}")
    return found


def verify(top, log, worker):
    model, pending, done = Model(worker), None, 0
    with open(log) as lines:
        for line in lines:
            if line.startswith("> "):
                pending = tuple(json.loads(line[2:]))
            else:
                model.apply(pending)
                pending, done = None, done + 1
    found = look(top, model)
    without = model.snapshot()
    if found == without:
        return f"worker {worker}: {done} operations returned and are there" + (", 1 was under way: absent" * bool(pending))
    if pending:
        model.apply(pending)
        if found == model.snapshot():
            return f"worker {worker}: {done} operations returned and are there, 1 was under way: present"
    wrong = [f"  {name}: found {found.get(name)}, expected {without.get(name)}"
             for name in sorted(found.keys() | without.keys()) if found.get(name) != without.get(name)]
    raise SystemExit(f"worker {worker}: {done} operations returned, under way {pending}; wrong:\n" + "\n".join(wrong))


def main(arguments):
    match arguments:
        case ["run", top, log, worker, seed, operations, killing]:
            run(top, log, int(worker), int(seed), int(operations), killing)
        case ["verify", top, log, worker]:
            print(verify(top, log, int(worker)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
