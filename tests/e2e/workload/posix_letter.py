"""What POSIX and Linux promise of files, point by point, seen from three directories that are one (three mounts).

    posix_letter.py DIR DIR DIR     each check is a function below; all run, those that fail are named; needs root
"""

import ctypes
import errno
import mmap
import multiprocessing
import os
import stat
import struct
import sys
import time
import traceback

DIRS = sys.argv[1:4]
A, B, C = DIRS
CHECKS = []
LARGEST = 2**63 - 1


def check(function):
    CHECKS.append(function)
    return function


def path(directory, name):
    return os.path.join(directory, name)


def fails(code, call, *args, **named):
    try:
        result = call(*args, **named)
    except OSError as error:
        assert error.errno == code, f"{errno.errorcode[error.errno]}, not {errno.errorcode[code]}"
    else:
        raise AssertionError(f"{result!r}, not {errno.errorcode[code]}")


def make(directory, name, content=b"", mode=0o644):
    fd = os.open(path(directory, name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.write(fd, content)
    os.fchmod(fd, mode)
    os.close(fd)
    return path(directory, name)


def as_user(uid, gid, groups, call, *args):
    """Runs a call in a process of another user; raises here what it raised there."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            call(*args)
        except OSError as error:
            code = error.errno
        except BaseException:
            code = 255
        os.write(there, b"%d" % code)
        os._exit(0)
    os.close(there)
    code = int(os.read(here, 10) or b"255")
    os.close(here)
    os.waitpid(pid, 0)
    if code:
        raise OSError(code, os.strerror(code))


def in_processes(target, arguments):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=lambda a=a: queue.put(target(*a))) for a in arguments]
    for process in processes:
        process.start()
    results = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return results


@check
def a_mapping_is_shared_by_processes_and_is_what_read_and_write_see():
    f = make(A, "mapped", b"\0" * 12288)
    fd = os.open(f, os.O_RDWR)
    m = mmap.mmap(fd, 12288)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        own = os.open(f, os.O_RDWR)
        n = mmap.mmap(own, 12288)
        n[0:5] = b"child"
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0 if n[5000:5006] == b"parent" else 1)
    os.read(ready[0], 1)
    assert m[0:5] == b"child", "a store of another process"
    m[5000:5006] = b"parent"
    os.write(go[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0, "the other process sees ours"
    assert os.pread(fd, 5, 0) == b"child", "read sees a store"
    os.pwrite(fd, b"written", 8192)
    assert m[8192:8199] == b"written", "a mapping sees a write"
    m[8190:8194] = b"abcd"
    assert os.pread(fd, 10, 8188) == b"\0\0abcditte"
    m.flush()
    for directory in (B, C):
        with open(path(directory, "mapped"), "rb") as other:
            assert other.read()[8190:8194] == b"abcd", "msync brings it to others"
    os.close(fd)
    m.close()
    os.unlink(f)


@check
def flags_of_open():
    for flag in (os.O_SYNC, os.O_DSYNC, os.O_DIRECT, os.O_NOATIME):
        f = path(A, f"flag{flag}")
        fd = os.open(f, os.O_CREAT | os.O_RDWR | flag, 0o644)
        page = mmap.mmap(-1, 4096)
        page.write(b"x" * 4096)
        assert os.writev(fd, [page]) == 4096
        assert os.preadv(fd, [page], 0) == 4096
        with open(path(B, f"flag{flag}"), "rb") as other:
            assert other.read() == b"x" * 4096
        os.close(fd)
        os.unlink(f)


def create_all(directory, names):
    made = []
    for name in names:
        try:
            os.close(os.open(path(directory, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            made.append(name)
        except FileExistsError:
            pass
    return made


@check
def of_those_who_create_with_o_excl_one_does():
    names = [f"excl{n}" for n in range(150)]
    made = in_processes(create_all, [(d, names) for d in DIRS])
    assert sorted(sum(made, [])) == sorted(names), "each name by one of three"
    for name in names:
        os.unlink(path(B, name))


@check
def blocks_are_those_in_use():
    f = make(A, "blocks")
    fd = os.open(f, os.O_RDWR)
    blocks = lambda: os.stat(path(B, "blocks")).st_blocks * 512
    assert blocks() == 0
    os.ftruncate(fd, 1 << 40)
    assert blocks() == 0, "a hole takes none"
    os.pwrite(fd, b"x" * 65536, 1 << 30)
    assert 65536 <= blocks() <= 65536 + 4096, blocks()
    libc = ctypes.CDLL(None, use_errno=True)
    fallocate = lambda mode, at, of: libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(of))
    assert fallocate(3, 1 << 30, 32768) == 0
    assert 32768 <= blocks() <= 32768 + 4096, blocks()
    os.ftruncate(fd, 0)
    assert blocks() == 0, blocks()
    for n in range(64):
        with open(path((A, B, C)[n % 3], "blocks"), "ab") as other:
            other.write(b"y" * 1000)
    assert 64000 <= blocks() <= 2 * 64000 + 8192, blocks()
    os.pwrite(fd, b"z" * 64000, 0)
    os.fsync(fd)
    assert 64000 <= blocks() <= 2 * 64000 + 8192, blocks()
    os.close(fd)
    os.unlink(f)


def times(name, directory=B):
    found = os.lstat(path(directory, name))
    return found.st_mtime_ns, found.st_ctime_ns


def moved(name, call, mtime, ctime):
    """Which times of `name` a call moves."""
    before = times(name)
    time.sleep(0.015)
    call()
    after = times(name)
    assert (after[0] > before[0]) == mtime, f"mtime {before[0]} -> {after[0]}"
    assert (after[1] > before[1]) == ctime, f"ctime {before[1]} -> {after[1]}"


@check
def times_move_as_they_should():
    os.mkdir(path(A, "times"))
    f = make(A, "times/f", b"hello")
    fd = os.open(f, os.O_RDWR)
    moved("times/f", lambda: os.pwrite(fd, b"x", 0), True, True)
    moved("times/f", lambda: os.pwrite(fd, b"", 0), False, False)
    moved("times/f", lambda: os.pread(fd, 5, 0), False, False)
    moved("times/f", lambda: os.ftruncate(fd, 3), True, True)
    moved("times/f", lambda: os.ftruncate(fd, 3), True, True)
    moved("times/f", lambda: os.truncate(f, 9), True, True)
    moved("times/f", lambda: os.chmod(f, 0o600), False, True)
    moved("times/f", lambda: os.chown(f, 5, 6), False, True)
    moved("times/f", lambda: os.link(f, path(A, "times/g")), False, True)
    moved("times/f", lambda: os.rename(path(A, "times/g"), path(A, "times/h")), False, True)
    moved("times/f", lambda: os.unlink(path(A, "times/h")), False, True)
    moved("times/f", lambda: os.setxattr(f, "user.x", b"y"), False, True)
    moved("times/f", lambda: os.removexattr(f, "user.x"), False, True)
    moved("times/f", lambda: os.posix_fallocate(fd, 0, 10000), True, True)
    moved("times/f", lambda: os.close(os.open(f, os.O_WRONLY | os.O_TRUNC)), True, True)
    moved("times/f", lambda: os.close(os.open(f, os.O_WRONLY | os.O_TRUNC)), True, True)
    os.utime(f, ns=(1_000_000_007, 2_000_000_009))
    found = os.stat(path(C, "times/f"))
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    moved("times/f", lambda: os.utime(f), True, True)
    for call in (
        lambda: make(A, "times/new"),
        lambda: os.rename(path(A, "times/new"), path(A, "times/other")),
        lambda: os.symlink("x", path(A, "times/link")),
        lambda: os.mkdir(path(A, "times/d")),
        lambda: os.rmdir(path(A, "times/d")),
        lambda: os.unlink(path(A, "times/other")),
        lambda: os.unlink(path(A, "times/link")),
    ):
        moved("times", call, True, True)
    moved("times", lambda: os.pwrite(fd, b"x", 0), False, False)
    moved("times", lambda: os.listdir(path(A, "times")), False, False)
    m = mmap.mmap(fd, 4096) if os.ftruncate(fd, 4096) is None else None
    def store():
        m[0:1] = b"q"
        m.flush()
    moved("times/f", store, True, True)
    os.close(fd)
    os.unlink(f)
    os.rmdir(path(A, "times"))


@check
def access_times_move_by_relatime():
    def read(directory, name):
        with open(path(directory, name), "rb") as file:
            file.read()

    def access(name, directory=A):
        return os.lstat(path(directory, name)).st_atime_ns

    day = 24 * 3600 * 10**9
    for reader in DIRS:
        f = make(A, "read", b"hello")
        for change in (lambda: None, lambda: os.truncate(f, 3), lambda: os.chmod(f, 0o600)):
            change()
            ctime = os.stat(f).st_ctime_ns
            assert access("read", reader) <= ctime, "looking is no reading"
            read(reader, "read")
            first = access("read", reader)
            assert first > ctime, f"{reader}: read after a change, {ctime} -> {first}"
            assert os.stat(f).st_ctime_ns == ctime, "the change time stays"
            read(reader, "read")
            assert access("read", reader) == first, "read again without a change"
        now = time.time_ns()
        os.utime(f, ns=(now + day, now))
        read(reader, "read")
        assert access("read", reader) == now + day, "later than the last change"
        os.unlink(f)
        f = make(A, "quiet", b"hello")
        before = access("quiet")
        fd = os.open(path(reader, "quiet"), os.O_RDONLY | os.O_NOATIME)
        os.pread(fd, 5, 0)
        os.close(fd)
        assert access("quiet", reader) == before, "O_NOATIME"
        os.unlink(f)
        os.mkdir(path(A, "listed"))
        os.symlink("to", path(A, "link"))
        for name, call in (("listed", os.listdir), ("link", os.readlink)):
            before = access(name, reader)
            call(path(reader, name))
            after = access(name, reader)
            assert after > before, f"{name}: {before} -> {after}"
            call(path(reader, name))
            assert access(name, reader) == after, name
        os.rmdir(path(A, "listed"))
        os.unlink(path(A, "link"))


@check
def privileges_go_with_a_change_by_somebody_else():
    os.mkdir(path(A, "priv"), 0o777)
    os.chmod(path(A, "priv"), 0o777)
    mode = lambda name: stat.S_IMODE(os.stat(path(B, name)).st_mode)

    def write(name):
        fd = os.open(path(A, name), os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)

    def overwrite(name):
        fd = os.open(path(A, name), os.O_WRONLY | os.O_TRUNC)
        os.close(fd)

    def map_and_store(name):
        fd = os.open(path(A, name), os.O_RDWR)
        m = mmap.mmap(fd, 4)
        m[0:1] = b"x"
        m.flush()

    def allocate(name):
        # the C library writes, and looks first at what is there
        fd = os.open(path(A, name), os.O_RDWR)
        os.posix_fallocate(fd, 0, 100)

    for n, (change, by_root) in enumerate([
        (write, 0o6777), (overwrite, 0o6777), (lambda name: os.truncate(path(A, name), 1), 0o6777),
        (lambda name: os.truncate(path(A, name), 100), 0o6777), (allocate, 0o6777),
    ]):
        name = f"priv/f{n}"
        make(A, name, b"1234", 0o6777)
        change(name)
        assert mode(name) == by_root, f"{n}: root keeps them: {mode(name):o}"
        as_user(1000, 1000, [], change, name)
        assert mode(name) == 0o777, f"{n}: {mode(name):o}"
    make(A, "priv/g", b"1234", 0o2767)
    as_user(1000, 1000, [], write, "priv/g")
    assert mode("priv/g") in (0o767, 0o2767), "without the group's x it is no privilege"
    make(A, "priv/c", b"", 0o6777)
    os.chown(path(A, "priv/c"), 1000, 1000)
    assert mode("priv/c") == 0o777, f"a change of owner takes them: {mode('priv/c'):o}"
    os.chmod(path(A, "priv/c"), 0o6777)
    as_user(1000, 1000, [1001], os.chown, path(A, "priv/c"), -1, 1001)
    assert mode("priv/c") == 0o777, f"so does one of group: {mode('priv/c'):o}"
    as_user(1000, 1000, [], os.chmod, path(A, "priv/c"), 0o2755)
    assert mode("priv/c") == 0o755, "who is not in the group cannot give its privileges"
    # a directory of a group
    os.mkdir(path(A, "priv/d"))
    os.chown(path(A, "priv/d"), 0, 1001)
    os.chmod(path(A, "priv/d"), 0o2777)
    as_user(1000, 1000, [], os.mkdir, path(A, "priv/d/sub"))
    found = os.stat(path(C, "priv/d/sub"))
    assert found.st_gid == 1001 and found.st_mode & stat.S_ISGID
    as_user(1000, 1000, [], lambda: os.close(os.open(path(A, "priv/d/f"), os.O_CREAT | os.O_WRONLY, 0o2777)))
    found = os.stat(path(C, "priv/d/f"))
    assert found.st_gid == 1001 and not found.st_mode & stat.S_ISGID, oct(found.st_mode)


ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP_OF, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32


def acl(*entries):
    """The attribute's value: a version, then tag, permissions and id of each entry."""
    packed = [struct.pack("<HHI", tag, allows, id[0] if id else 0xFFFFFFFF) for tag, allows, *id in entries]
    return struct.pack("<I", 2) + b"".join(packed)


@check
def access_control_lists_are_enforced_and_inherited():
    def read(directory, name):
        os.close(os.open(path(directory, name), os.O_RDONLY))

    def mode(name):
        return stat.S_IMODE(os.stat(path(B, name)).st_mode)

    plain = acl((OWNER, 6), (GROUP_OF, 4), (OTHER, 0))
    named = acl((OWNER, 6), (USER, 4, 1234), (GROUP_OF, 0), (GROUP, 6, 77), (MASK, 6), (OTHER, 0))
    for setter in DIRS:
        f = make(setter, "listed", b"hello", 0o600)
        fails(errno.ENODATA, os.getxattr, f, ACCESS)
        fails(errno.EINVAL, os.setxattr, f, ACCESS, acl((OWNER, 6), (OTHER, 0)))
        fails(errno.EACCES, os.setxattr, f, DEFAULT, named)
        as_user(1234, 9, [], fails, errno.EPERM, os.setxattr, f, ACCESS, named)
        os.setxattr(f, ACCESS, named)
        assert mode("listed") == 0o660, "the group's bits are the mask"
        assert os.getxattr(path(C, "listed"), ACCESS) == named and ACCESS in os.listxattr(path(C, "listed"))
        for reader in DIRS:
            as_user(1234, 9, [], read, reader, "listed")
            as_user(1235, 9, [77], read, reader, "listed")
            as_user(1234, 9, [], fails, errno.EACCES, os.open, path(reader, "listed"), os.O_WRONLY)
            as_user(1235, 9, [], fails, errno.EACCES, read, reader, "listed")
            as_user(1235, 0, [], fails, errno.EACCES, read, reader, "listed")
        os.chmod(path(C, "listed"), 0o600)
        for reader in DIRS:
            as_user(1234, 9, [], fails, errno.EACCES, read, reader, "listed")
        os.chmod(path(A, "listed"), 0o640)
        as_user(1234, 9, [], read, B, "listed")
        os.setxattr(f, ACCESS, plain)
        assert ACCESS not in os.listxattr(f) and mode("listed") == 0o640, "no more than permission bits"
        as_user(1234, 9, [], fails, errno.EACCES, read, B, "listed")
        os.unlink(f)

        default = acl((OWNER, 7), (USER, 5, 1234), (GROUP_OF, 5), (MASK, 5), (OTHER, 0))
        os.mkdir(path(setter, "heirs"), 0o755)
        os.setxattr(path(setter, "heirs"), DEFAULT, default)
        os.umask(0o077)
        for maker in DIRS:
            os.mkdir(path(maker, "heirs/d"), 0o777)
            os.close(os.open(path(maker, "heirs/d/f"), os.O_CREAT | os.O_WRONLY, 0o666))
            os.mknod(path(maker, "heirs/d/p"), stat.S_IFIFO | 0o644)
            os.symlink("f", path(maker, "heirs/d/l"))
            assert os.getxattr(path(A, "heirs/d"), DEFAULT) == default
            assert (mode("heirs/d"), mode("heirs/d/f"), mode("heirs/d/p")) == (0o750, 0o640, 0o640), maker
            as_user(1234, 9, [], read, B, "heirs/d/f")
            as_user(1235, 9, [], fails, errno.EACCES, read, B, "heirs/d/f")
            for name in ("d/f", "d/p", "d/l"):
                os.unlink(path(C, f"heirs/{name}"))
            os.rmdir(path(C, "heirs/d"))
        os.removexattr(path(B, "heirs"), DEFAULT)
        fails(errno.ENODATA, os.removexattr, path(B, "heirs"), DEFAULT)
        os.close(os.open(path(setter, "heirs/f"), os.O_CREAT | os.O_WRONLY, 0o666))
        assert mode("heirs/f") == 0o600, "the umask again"
        os.umask(0o022)
        os.unlink(path(A, "heirs/f"))
        os.rmdir(path(A, "heirs"))


@check
def sticky_directories_and_supplementary_groups():
    os.mkdir(path(A, "sticky"))
    os.chmod(path(A, "sticky"), 0o1777)
    make(A, "sticky/f")
    os.chown(path(A, "sticky/f"), 1000, 1000)
    for directory in DIRS:
        fails(errno.EPERM, as_user, 1001, 1001, [], os.unlink, path(directory, "sticky/f"))
        fails(errno.EPERM, as_user, 1001, 1001, [], os.rename, path(directory, "sticky/f"), path(directory, "sticky/g"))
    as_user(1001, 1001, [], lambda: os.close(os.open(path(A, "sticky/own"), os.O_CREAT | os.O_WRONLY)))
    fails(errno.EPERM, as_user, 1001, 1001, [], os.rename, path(A, "sticky/own"), path(A, "sticky/f"))
    as_user(1000, 1000, [], os.unlink, path(A, "sticky/f"))
    os.mkdir(path(A, "group"))
    os.chown(path(A, "group"), 0, 5000)
    os.chmod(path(A, "group"), 0o070)
    for directory in DIRS:
        fails(errno.EACCES, as_user, 1000, 1000, [4999], os.listdir, path(directory, "group"))
        as_user(1000, 1000, [4999, 5000], os.mkdir, path(directory, "group/d"))
        as_user(1000, 1000, [5000], os.listdir, path(directory, "group"))
        as_user(1000, 1000, [5000], os.rmdir, path(directory, "group/d"))


@check
def a_directory_can_be_read_from_where_one_was():
    os.mkdir(path(A, "tell"))
    for n in range(500):
        make(A, f"tell/entry-{n:04}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    handle = ctypes.c_void_p(libc.opendir(path(B, "tell").encode()))

    def entry():
        found = libc.readdir(handle)
        return ctypes.string_at(found + 19) if found else None

    seen = []
    while True:
        at = libc.telldir(handle)
        name = entry()
        if name is None:
            break
        seen.append((at, name))
    assert len(seen) == 502 and len({at for at, _ in seen}) == 502
    for at, name in seen[::37] + seen[::-41]:
        libc.seekdir(handle, ctypes.c_long(at))
        assert entry() == name
    # entries that stay are found from there on, whatever goes and comes meanwhile
    for n in range(0, 500, 2):
        os.unlink(path(A, f"tell/entry-{n:04}"))
        make(A, f"tell/late-{n:04}")
    at, _ = seen[250]
    libc.seekdir(handle, ctypes.c_long(at))
    found = []
    while (name := entry()) is not None:
        found.append(name)
    assert len(found) == len(set(found))
    expected = [name for _, name in seen[250:] if name.startswith(b"entry-") and int(name[6:]) % 2]
    assert [name for name in found if name in set(expected)] == expected
    libc.rewinddir(handle)
    assert sum(1 for _ in iter(entry, None)) == 502
    libc.closedir(handle)


def churn(directory, seconds):
    end = time.monotonic() + seconds
    n = 0
    while time.monotonic() < end:
        name = path(directory, f"stable/gone-{os.getpid()}-{n}")
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        os.rename(name, name + "x")
        os.unlink(name + "x")
        n += 1
    return n


def watch(directory, seconds, names):
    end = time.monotonic() + seconds
    wrong = []
    while time.monotonic() < end and not wrong:
        listed = os.listdir(path(directory, "stable"))
        if len(listed) != len(set(listed)):
            wrong.append("an entry came twice")
        if missing := names - set(listed):
            wrong.append(f"missing: {sorted(missing)[:3]}")
    return wrong


@check
def a_listing_neither_misses_nor_doubles_what_does_not_change():
    os.mkdir(path(A, "stable"))
    names = {f"stays-{n}" for n in range(700)}
    for name in names:
        make(A, f"stable/{name}")
    context = multiprocessing.get_context("fork")
    churners = [context.Process(target=churn, args=(d, 6)) for d in (A, C)]
    for process in churners:
        process.start()
    wrong = in_processes(watch, [(d, 5, names) for d in DIRS])
    for process in churners:
        process.join()
    assert wrong == [[], [], []], wrong


@check
def an_open_file_outlives_its_name_on_every_mount():
    for opener in DIRS:
        for remover in DIRS:
            for how in ("unlink", "rename"):
                make(A, "doomed", b"content")
                fd = os.open(path(opener, "doomed"), os.O_RDWR)
                if how == "unlink":
                    os.unlink(path(remover, "doomed"))
                else:
                    make(remover, "killer", b"new")
                    os.rename(path(remover, "killer"), path(remover, "doomed"))
                assert os.fstat(fd).st_nlink == 0, (opener, remover, how)
                assert os.pread(fd, 100, 0) == b"content"
                os.pwrite(fd, b"x" * 100000, 5)
                assert os.pread(fd, 200000, 0) == b"conte" + b"x" * 100000
                os.ftruncate(fd, 3)
                os.fchmod(fd, 0o600)
                assert os.fstat(fd).st_size == 3
                os.close(fd)
                if how == "rename":
                    os.unlink(path(B, "doomed"))
                fails(errno.ENOENT, os.stat, path(opener, "doomed"))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    for remover in DIRS:
        os.mkdir(path(A, "dead"))
        fd = os.open(path(A, "dead"), os.O_RDONLY | os.O_DIRECTORY)
        handle = ctypes.c_void_p(libc.opendir(path(A, "dead").encode()))
        os.rmdir(path(remover, "dead"))
        assert os.fstat(fd).st_nlink == 0 and stat.S_ISDIR(os.fstat(fd).st_mode), remover
        ctypes.set_errno(0)
        while found := libc.readdir(handle):
            assert ctypes.string_at(found + 19) in (b".", b"..")
        assert ctypes.get_errno() == 0, errno.errorcode[ctypes.get_errno()]
        libc.closedir(handle)
        try:
            os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
            raise AssertionError("a file in a directory that is gone")
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.ESTALE), error
        os.close(fd)


@check
def names_and_paths_as_long_as_they_may_be():
    name = "n" * 255
    make(A, name)
    assert name in os.listdir(B)
    os.rename(path(C, name), path(C, "m" * 255))
    os.unlink(path(A, "m" * 255))
    for call in (os.stat, os.mkdir, os.unlink):
        fails(errno.ENAMETOOLONG, call, path(A, "n" * 256))
    os.mkdir(path(A, "deep"))
    at = path(A, "deep")
    while len(at) + 100 < 4095:
        at = path(at, "d" * 90)
        os.mkdir(at)
    longest = at + "/" + "f" * (4095 - len(at) - 1)
    assert len(longest) == 4095
    os.close(os.open(longest, os.O_CREAT | os.O_WRONLY))
    assert os.stat(longest).st_size == 0
    fails(errno.ENAMETOOLONG, os.stat, longest + "x")
    other = path(B, longest[len(A) + 1 :])
    if len(other) <= 4095:
        os.unlink(other)
    target = "t" * 4095
    os.symlink(target, path(A, "longlink"))
    assert os.readlink(path(B, "longlink")) == target
    fails(errno.ENAMETOOLONG, os.symlink, "t" * 4096, path(A, "toolong"))
    os.unlink(path(A, "longlink"))


@check
def a_file_of_8_eib_less_one_byte():
    f = make(A, "huge")
    fd = os.open(f, os.O_RDWR)
    os.ftruncate(fd, LARGEST)
    assert os.stat(path(B, "huge")).st_size == LARGEST and os.stat(path(B, "huge")).st_blocks == 0
    assert os.pwrite(fd, b"z", LARGEST - 1) == 1
    other = os.open(path(C, "huge"), os.O_RDWR)
    assert os.pread(other, 4, LARGEST - 4) == b"\0\0\0z"
    assert os.pread(other, 10, 1 << 62) == b"\0" * 10
    assert os.lseek(other, 0, os.SEEK_DATA) >= LARGEST - 5000
    assert os.lseek(other, 0, os.SEEK_HOLE) == 0
    for call in (lambda: os.pwrite(other, b"zz", LARGEST), lambda: os.write(other, b"x")):
        if call.__code__.co_names[-1] == "write":
            os.lseek(other, LARGEST, os.SEEK_SET)
        try:
            call()
            raise AssertionError("written beyond the end of all files")
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.EINVAL), error
    os.close(fd)
    os.close(other)
    assert os.stat(f).st_size == LARGEST
    os.truncate(f, 0)
    assert os.stat(path(B, "huge")).st_blocks == 0
    os.unlink(f)


class FileHandle(ctypes.Structure):
    """struct file_handle of open_by_handle_at(2)."""

    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def file_handle(name):
    handle, mount = FileHandle(bytes=128), ctypes.c_int()
    at = os.fsencode(name)
    if ctypes.CDLL(None, use_errno=True).name_to_handle_at(-100, at, ctypes.byref(handle), ctypes.byref(mount), 0) < 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at", name)
    return handle


def open_handle(directory, handle, flags):
    mount = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = ctypes.CDLL(None, use_errno=True).open_by_handle_at(mount, ctypes.byref(handle), flags)
    finally:
        os.close(mount)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd


@check
def a_file_handle_names_its_file_on_every_mount():
    os.makedirs(path(A, "handles/deep/er"))
    name = make(A, "handles/deep/er/file", b"found by its handle")
    file, directory = file_handle(name), file_handle(path(A, "handles/deep/er"))
    for mount in DIRS:  # those that have never looked it up too
        fd = open_handle(mount, file, os.O_RDWR)
        assert os.pread(fd, 100, 0) == b"found by its handle"
        os.close(fd)
        fd = open_handle(mount, directory, os.O_RDONLY)
        assert os.listdir(fd) == ["file"]
        assert os.readlink(f"/proc/self/fd/{fd}") == os.path.realpath(path(mount, "handles/deep/er"))
        os.close(fd)
    os.rename(path(B, "handles/deep/er"), path(B, "handles/moved"))
    os.rename(path(B, "handles/moved/file"), path(B, "handles/renamed"))
    for mount in DIRS:
        os.close(open_handle(mount, file, os.O_RDONLY))
        fd = open_handle(mount, directory, os.O_RDONLY)
        assert os.listdir(fd) == [] and os.fstat(fd).st_ino == os.stat(path(mount, "handles/moved")).st_ino
        os.close(fd)
    os.unlink(path(C, "handles/renamed"))
    os.rmdir(path(C, "handles/moved"))
    for n in range(300):  # some of them where the others were
        make(A, f"handles/later{n}")
    for mount in DIRS:
        for gone in (file, directory):  # a mount may still hold what it had open, without a name
            try:
                fd = open_handle(mount, gone, os.O_RDONLY)
            except OSError as error:
                assert error.errno == errno.ESTALE, error
            else:
                assert os.fstat(fd).st_nlink == 0
                os.close(fd)
    for n in range(300):
        os.unlink(path(B, f"handles/later{n}"))
    os.rmdir(path(A, "handles/deep"))
    os.rmdir(path(A, "handles"))


@check
def a_file_handle_names_the_later_file_of_a_slot_too():
    os.mkdir(path(A, "again"))
    places = set()
    used_again = 0
    for _ in range(10):  # files and directories that every mount has seen and one has removed, in slots used before
        for n in range(10):
            os.mkdir(path(A, f"again/d{n}"))
            make(A, f"again/d{n}/f", b"later")
            names = [f"again/d{n}", f"again/d{n}/f"]
            for name in names:
                place = os.stat(path(A, name)).st_ino & ~(0xFF << 40)
                used_again += place in places
                places.add(place)
            handles = [file_handle(path(A, name)) for name in names]
            for mount in DIRS:
                for name, handle in zip(names, handles):
                    fd = open_handle(mount, handle, os.O_RDONLY)
                    assert os.fstat(fd).st_ino == os.stat(path(mount, name)).st_ino
                    os.close(fd)
                assert os.listdir(path(mount, f"again/d{n}")) == ["f"]
        for n in range(10):
            os.unlink(path(A, f"again/d{n}/f"))
            os.rmdir(path(A, f"again/d{n}"))
    assert used_again >= 20, f"only {used_again} slots were used again"
    os.rmdir(path(A, "again"))


@check
def a_directory_that_is_gone_has_no_names():
    for n, other in enumerate([B, C, A]):  # A itself last: its kernel knows of it
        gone = path(A, f"gone{n}")
        os.mkdir(gone)
        make(A, f"gone{n}/file")
        make(A, f"gone{n}/unseen")
        os.mkdir(path(gone, "dir"))
        stays = make(A, f"stays{n}")
        fd = os.open(gone, os.O_RDONLY | os.O_DIRECTORY)
        assert sorted(os.listdir(fd)) == ["dir", "file", "unseen"]
        os.stat("file", dir_fd=fd)
        os.stat("dir", dir_fd=fd)
        elsewhere = path(other, f"gone{n}")
        os.unlink(path(elsewhere, "file"))
        os.unlink(path(elsewhere, "unseen"))
        os.rmdir(path(elsewhere, "dir"))
        os.rmdir(elsewhere)
        for _ in range(2):
            fails(errno.ENOENT, os.unlink, "file", dir_fd=fd)
            fails(errno.ENOENT, os.unlink, "unseen", dir_fd=fd)
            fails(errno.ENOENT, os.rmdir, "dir", dir_fd=fd)
            fails(errno.ENOENT, os.stat, "file", dir_fd=fd)
            fails(errno.ENOENT, os.stat, "never", dir_fd=fd)
            fails(errno.ENOENT, os.open, "unseen", os.O_RDONLY, dir_fd=fd)
            fails(errno.ENOENT, os.open, "new", os.O_RDWR | os.O_CREAT, 0o644, dir_fd=fd)
            fails(errno.ENOENT, os.open, "new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_TRUNC, 0o644, dir_fd=fd)
            fails(errno.ENOENT, os.mkdir, "new", dir_fd=fd)
            fails(errno.ENOENT, os.mkfifo, "new", dir_fd=fd)
            fails(errno.ENOENT, os.symlink, "target", "new", dir_fd=fd)
            fails(errno.ENOENT, os.link, stays, "new", dst_dir_fd=fd)
            fails(errno.ENOENT, os.rename, stays, "new", dst_dir_fd=fd)
            fails(errno.ENOENT, os.rename, "file", path(A, "new"), src_dir_fd=fd)
            fails(errno.ENOENT, os.rename, "file", "new", src_dir_fd=fd, dst_dir_fd=fd)
        assert os.listdir(fd) == []
        assert os.stat(fd).st_nlink == 0
        os.fsync(fd)
        os.close(fd)
        assert os.stat(stays).st_nlink == 1
        os.unlink(stays)


def main():
    failed = 0
    for function in CHECKS:
        os.umask(0o022)
        began = time.monotonic()
        try:
            function()
            print(f"ok      {function.__name__} {time.monotonic() - began:.1f} s", file=sys.stderr)
        except BaseException:
            failed += 1
            print(f"FAILED  {function.__name__}", file=sys.stderr)
            traceback.print_exc()
    print(f"{len(CHECKS) - failed} of {len(CHECKS)}")
    sys.exit(1 if failed else 0)


main()
