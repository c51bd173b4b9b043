#!/usr/bin/env python3
"""Partitions of the network, and a record of what was acknowledged to whom.

    partition.py late ROUNDS SEED PREFIX MOUNT...       one object each, one operation that fails, heal, the next operation
    partition.py mixed ROUNDS SEED PREFIX CLUSTER MOUNT...  a mixed load on every mount under random faults
    partition.py strangers PREFIX SECONDS READY         300 silent connections to every node for SECONDS; READY appears when
                                                        they are open

MOUNT is HOST=DIR; the namespace of a host is PREFIX-HOST, that of the router between them PREFIX-net. Nodes are n0, n1, ...;
inode numbers say on which of them a file lies. Faults are rules of the router's FORWARD chain.

Every object belongs to one client, which operates on it from one thread. What each of them promises:

- acknowledged operations are there, on every mount;
- an operation that was reported failed has happened as a whole or not at all, and takes no effect once a later one of the
  same client at the same object was acknowledged;
- an append is there once and whole, a name is at one place, a name that nobody has removed is never denied.
"""

import ctypes
import errno
import json
import os
import random
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
NODES = 3
KINDS = ("both", "to", "from", "reset", "reject")
SIZES = (3_000, 30_000, 300_000)
# Longest times in seconds: an answer while the network is cut, an operation after it was healed, the kernel's last
# retransmission of what was under way. An operation that begins CALM after the heal does not fail: everybody has looked again
# at who was away.
ANSWER, RECOVERY, QUIET, CALM = 30, 20, 60, 5
ALLOWED = (errno.EIO, errno.EBUSY)


class Wrong(Exception):
    """A promise that was not kept."""


def note(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def wait_until(limit, what, condition, pause=0.02):
    deadline = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {limit} s")
        time.sleep(pause)
    return found


class Network:
    """The router between the hosts."""

    def __init__(self, prefix):
        self.prefix, self.addresses = prefix, {}

    def inside(self, host, *command):
        whole = ["nsenter", f"--net=/run/netns/{self.prefix}-{host}", *command]
        return subprocess.run(whole, check=True, capture_output=True, text=True).stdout

    def address(self, host):
        if host not in self.addresses:
            shown = json.loads(self.inside(host, "ip", "-j", "-4", "address", "show", "eth0"))
            self.addresses[host] = shown[0]["addr_info"][0]["local"]
        return self.addresses[host]

    def cut(self, kind, pairs):
        """Between the two hosts of each pair; "to" loses what the first one sends, "from" what it should get."""
        target = {
            "reset": ["-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"],
            "reject": ["-j", "REJECT", "--reject-with", "icmp-host-prohibited"],
        }.get(kind, ["-j", "DROP"])
        rules = ["*filter"]
        for one, other in pairs:
            ways = {"to": [(one, other)], "from": [(other, one)]}.get(kind, [(one, other), (other, one)])
            for source, destination in ways:
                rule = ["-A FORWARD -s", self.address(source), "-d", self.address(destination), *target]
                rules.append(" ".join(rule))
        # all rules at the same moment
        whole = ["nsenter", f"--net=/run/netns/{self.prefix}-net", "iptables-restore", "--noflush"]
        subprocess.run(whole, check=True, input="\n".join([*rules, "COMMIT", ""]), text=True)

    def heal(self):
        self.inside("net", "iptables", "-F", "FORWARD")

    def hits(self):
        """Packets that the rules have met so far."""
        lines = self.inside("net", "iptables", "-nvxL", "FORWARD").splitlines()[2:]
        return sum(int(line.split()[0]) for line in lines)

    def quiet(self, *hosts):
        """Waits until no connection of these hosts has anything left that was not delivered."""
        def nothing_left(host):
            lines = self.inside(host, "ss", "-tnH").splitlines()
            return all(line.split()[2] == "0" for line in lines if line.split()[0] != "SYN-SENT")
        for host in hosts:
            wait_until(QUIET, f"{host}: undelivered bytes", lambda: nothing_left(host))


def bytes_of(label, length):
    """Bytes that nothing else has; the first ones say what they are."""
    head = f"{label}|".encode()
    return head[:length] + random.Random(label).randbytes(max(0, length - len(head)))


def shown(found):
    return f"{len(found)} bytes, {found.split(b'|')[0][:40]!r}..."


def on_node(make, remove, node):
    """The name of something that lies on the node; a region's node is its number modulo the number of nodes."""
    for n in range(1000):
        name = f"try-{threading.get_native_id()}-{n}"
        make(name)
        if (os.stat(name).st_ino >> 48) % NODES == node:
            return name
        remove(name)
    raise Wrong(f"nothing came to node {node}")


def make_file(name):
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))


class Object:
    """Something in the file system that one client changes. `step` does one operation, and raises its error."""

    def __init__(self, view, name):
        self.view, self.name, self.path = view, name, f"{view.top}/{name}"
        self.label = f"{view.host} {name}"
        self.version = 0
        self.good_at = 0  # the last generation of the network in which an operation was acknowledged
        self.failed = False

    def prepare(self, node):
        os.chdir(self.view.top)
        os.rename(on_node(make_file, os.unlink, node), self.name)

    def wrong(self, text):
        return Wrong(f"{self.label}: {text}")

    def at(self, top):
        return f"{top}/{self.name}"


class Slots(Object):
    """A file of slots that are overwritten, each as a whole; neighbours share pages."""

    def __init__(self, view, name, count, size, rng):
        super().__init__(view, name)
        self.count, self.size, self.rng = count, size, rng

    def prepare(self, node):
        super().prepare(node)
        self.fd = os.open(self.path, os.O_RDWR)
        # what each slot may hold, and whether that can still change without a new operation
        self.versions = [[0] for _ in range(self.count)]
        self.final = [True] * self.count
        for slot in range(self.count):
            self.put(slot, 0)

    def content(self, slot, version):
        return bytes_of(f"{self.label} {slot} v{version}", self.size)

    def put(self, slot, version):
        if (written := os.pwrite(self.fd, self.content(slot, version), slot * self.size)) != self.size:
            raise self.wrong(f"wrote {written} of {self.size} bytes")

    def step(self):
        slot = self.rng.randrange(self.count)
        self.version += 1
        self.versions[slot].append(self.version)
        self.final[slot] = False
        self.put(slot, self.version)
        self.versions[slot] = [self.version]
        self.final = [True] * self.count

    def check(self, top):
        with open(self.at(top), "rb", buffering=0) as file:
            for slot in range(self.count):
                found = os.pread(file.fileno(), self.size, slot * self.size)
                seen = [v for v in self.versions[slot] if found == self.content(slot, v)]
                if not seen:
                    raise self.wrong(f"slot {slot} through {top}: {shown(found)}; it may be {self.versions[slot]}")
                if self.final[slot]:
                    self.versions[slot] = seen
            if (size := os.fstat(file.fileno()).st_size) != self.count * self.size:
                raise self.wrong(f"{size} bytes long through {top}")


class Appends(Object):
    """Numbered records at the end of a file, which may be shared with other clients' Appends."""

    def __init__(self, view, name, rng):
        super().__init__(view, name)
        self.rng, self.acknowledged, self.lengths = rng, set(), {}

    def prepare(self, node):
        if node is not None:
            super().prepare(node)
        self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def record(self, number):
        length = self.lengths[number]
        return bytes_of(f"{self.view.host} {number} {length}", length)

    def step(self):
        self.version += 1
        number, self.lengths[self.version] = self.version, self.rng.choice((100, 3_000, 30_000))
        if (written := os.write(self.fd, self.record(number))) != self.lengths[number]:
            raise self.wrong(f"appended {written} of {self.lengths[number]} bytes")
        self.acknowledged.add(number)

    def check(self, top):
        with open(self.at(top), "rb") as file:
            whole = file.read()
        last, offset, there = 0, 0, set()
        while offset < len(whole):
            head = whole[offset : offset + 40].split(b"|")[0].decode("latin-1").split(" ")
            if len(head) != 3 or not head[2].isdigit():
                raise self.wrong(f"through {top}: no record at {offset}: {whole[offset : offset + 40]!r}")
            host, number, length = head[0], int(head[1]), int(head[2])
            if whole[offset : offset + length] != bytes_of(f"{host} {number} {length}", length):
                raise self.wrong(f"through {top}: record {head} at {offset} is not whole")
            if host == self.view.host:
                if number <= last:
                    raise self.wrong(f"through {top}: record {number} at {offset} comes after {last}")
                last = number
                there.add(number)
            offset += length
        if missing := self.acknowledged - there:
            raise self.wrong(f"through {top}: acknowledged records are not there: {sorted(missing)[:10]}")


class Token(Object):
    """A file that is renamed from one directory to another, always to a name that was never used."""

    def __init__(self, view, name, directories, rng):
        super().__init__(view, name)
        self.directories, self.rng, self.past = directories, rng, []

    def prepare(self, node):
        super().prepare(node)
        self.inode = os.stat(self.path).st_ino
        self.places = [self.name]  # where it may be; earlier ones are where later ones were to come from

    def step(self):
        self.version += 1
        new = f"{self.rng.choice(self.directories)}/{self.name}.{self.version}"
        while self.places:
            old = self.places[0]
            if new not in self.places:
                self.places.append(new)
            try:
                os.rename(f"{self.view.top}/{old}", f"{self.view.top}/{new}")
            except FileNotFoundError:
                # so it is where an operation that was reported failed has moved it
                self.past.append(self.places.pop(0))
                if self.places == [new]:
                    raise self.wrong(f"is at none of its names, found at {self.find(self.view.top)}") from None
                continue
            self.past.extend(place for place in self.places if place != new)
            self.places = [new]
            self.past = self.past[-30:]
            return

    def find(self, top):
        found = []
        for place in [*self.past, *self.places]:
            try:
                inode = os.stat(f"{top}/{place}").st_ino
            except FileNotFoundError:
                continue
            found.append(place)
            if inode != self.inode:
                raise self.wrong(f"{place} through {top} is another file")
        return found

    def check(self, top):
        found = self.find(top)
        if len(found) != 1 or found[0] not in self.places:
            # how it looks a little later, and in a listing, tells what kind of error that is
            listed = [place for place in found if os.path.basename(place) in os.listdir(f"{top}/{os.path.dirname(place)}")]
            time.sleep(1)
            raise self.wrong(f"is at {found} through {top}, may be at {self.places}; listed {listed}, a second later at "
                             f"{self.find(top)}; it was at {self.past[-8:]}")


class Name(Object):
    """A name that is made and removed, always the same."""

    def prepare(self, node):
        self.there, self.trying = False, False

    def step(self):
        again, self.trying = self.trying, True
        try:
            if self.there:
                os.unlink(self.path)
            else:
                make_file(self.path)
        except (FileExistsError, FileNotFoundError) as error:
            if not again:
                raise self.wrong(f"{'there' if self.there else 'not there'}, but: {error}") from None
            # the operation that was reported failed has happened
        self.there, self.trying = not self.there, False

    def check(self, top):
        if not self.trying and os.path.exists(self.at(top)) != self.there:
            raise self.wrong(f"through {top}: {'is not there' if self.there else 'is there'}")


class Attribute(Object):
    """The length and the permission bits of a file, set in turn."""

    def __init__(self, view, name, rng):
        super().__init__(view, name)
        self.rng = rng

    def prepare(self, node):
        super().prepare(node)
        self.fd = os.open(self.path, os.O_RDWR)
        self.sizes, self.modes = [0], [0o644]

    def step(self):
        self.version += 1
        if self.version % 2:
            self.sizes.append(self.rng.randrange(1_000_000))
            os.ftruncate(self.fd, self.sizes[-1])
            del self.sizes[:-1]
        else:
            self.modes.append(0o600 + self.rng.randrange(64))
            os.fchmod(self.fd, self.modes[-1])
            del self.modes[:-1]

    def check(self, top):
        status = os.stat(self.at(top))
        if status.st_size not in self.sizes:
            raise self.wrong(f"through {top}: {status.st_size} bytes long, may be {self.sizes}")
        if status.st_mode & 0o7777 not in self.modes:
            raise self.wrong(f"through {top}: mode {status.st_mode:o}, may be {[oct(m) for m in self.modes]}")


class View:
    """A mount and the host that it is on."""

    def __init__(self, argument):
        self.host, self.mount = argument.split("=", 1)
        self.top = self.mount

    def nodes_to_lose(self):
        """Nodes that a cut can come between; a mount inside a node keeps that one."""
        return [node for node in range(NODES) if f"n{node}" != self.host]


def check_all(objects, views, calm_at):
    """Every object through every mount; its own client first, which may find out what has become of a failure. From calm_at
    on, no look fails."""
    for object_ in objects:
        for view in sorted(views, key=lambda view: view is not object_.view):
            while True:
                began = time.monotonic()
                try:
                    object_.check(view.top)
                    break
                except OSError as error:
                    if error.errno not in ALLOWED or began > calm_at:
                        raise object_.wrong(f"looking through {view.top}: {error}") from error
                    time.sleep(0.02)


# One operation fails, the next one is acknowledged.


def late_objects(view, rng):
    """For each node: one object of each kind. All made while the network is whole."""
    by_node = []
    for node in range(NODES):
        part = f"{view.host}-{node}"
        objects = [Slots(view, f"{part}-{size}", 1, size, rng) for size in SIZES]
        objects += [Appends(view, f"{part}-log", rng), Attribute(view, f"{part}-attribute", rng)]
        objects += [Token(view, f"{part}-token", ["d0", "d1", "d2"], rng), Name(view, f"d{node}/{part}-name")]
        for object_ in objects:
            object_.prepare(node)
        by_node.append(objects)
    return by_node


def in_threads(work, objects):
    """Each object's work in a thread of its own; what went wrong is raised here."""
    errors = []

    def guarded(object_):
        try:
            work(object_)
        except BaseException as error:  # shown by the main thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(o,), daemon=True) for o in objects]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * ANSWER
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    if stuck := [o.label for o, thread in zip(objects, threads) if thread.is_alive()]:
        raise Wrong(f"no answer: {stuck}")
    if errors:
        raise errors[0]


def late(rounds, seed, network, views):
    rng = random.Random(seed)
    os.mkdir(f"{views[0].mount}/late")
    for view in views:
        view.top = f"{view.mount}/late"
    os.chdir(views[0].top)
    for node in range(NODES):
        os.rename(on_node(os.mkdir, os.rmdir, node), f"d{node}")
    objects = {view: late_objects(view, rng) for view in views}
    failures = slowest_answer = slowest_back = 0

    for number in range(rounds):
        kind = KINDS[number % len(KINDS)]
        view = views[(number + number // len(KINDS)) % len(views)]
        node = rng.choice(view.nodes_to_lose())
        chosen = objects[view][node]
        answers, backs = {}, {}

        def fail(object_):
            started = time.monotonic()
            try:
                object_.step()
                raise object_.wrong(f"an operation succeeded without node {node} ({kind})")
            except OSError as error:
                if error.errno not in ALLOWED:
                    raise object_.wrong(f"without node {node} ({kind}): {error}") from error
            answers[object_] = time.monotonic() - started
            if answers[object_] > ANSWER:
                raise object_.wrong(f"an answer after {answers[object_]:.1f} s without node {node} ({kind})")

        def again(object_):
            started = time.monotonic()
            while True:
                try:
                    object_.step()
                    break
                except OSError as error:
                    if error.errno not in ALLOWED or time.monotonic() - started > RECOVERY:
                        raise object_.wrong(f"{time.monotonic() - started:.1f} s after the heal: {error}") from error
                    time.sleep(0.002)  # others use the machine, too
            backs[object_] = time.monotonic() - started

        network.cut(kind, [(view.host, f"n{node}")])
        in_threads(fail, chosen)
        network.heal()
        calm_at = time.monotonic() + CALM
        in_threads(again, chosen)
        check_all(chosen, views, calm_at)
        network.quiet(view.host, f"n{node}")
        check_all(chosen, views, calm_at)
        failures += len(answers)
        slowest_answer = max(slowest_answer, *answers.values())
        slowest_back = max(slowest_back, *backs.values())
        note(f"late {number + 1}: {view.host} without node {node} ({kind}): failed within {max(answers.values()):.1f} s, "
             f"acknowledged {max(backs.values()):.1f} s after the heal")

    check_all([o for by_node in objects.values() for part in by_node for o in part], views, calm_at)
    print(f"{failures} failed operations, none came later; EIO after at most {slowest_answer:.1f} s, "
          f"the next one done at most {slowest_back:.1f} s after the heal")


# A mixed load.

STATIC = 60


class Load:
    """Threads that operate on objects until they are told to pause."""

    def __init__(self, network, views, rng):
        self.network, self.views = network, views
        self.generation = 1  # of the network: grows with every heal
        self.faulty, self.healed_at = False, time.monotonic()
        self.go = threading.Event()
        self.go.set()
        self.errors, self.idle, self.threads = [], set(), []
        self.acknowledged = self.failed = self.looks = 0
        self.current = {}  # thread: what it does, since when
        self.parts = []  # a list of objects for each thread
        os.chdir(views[0].top)
        for node in range(NODES):
            os.rename(on_node(os.mkdir, os.rmdir, node), f"d{node}")
            os.mkdir(f"d{node}/deep")
            for n in range(STATIC // NODES // 2):
                make_file(f"d{node}/static{n}")
                make_file(f"d{node}/deep/static{n}")
        self.static = [f"d{node}/{at}static{n}" for node in range(NODES) for at in ("", "deep/")
                       for n in range(STATIC // NODES // 2)]
        shared = Appends(views[0], "shared", random.Random(rng.getrandbits(32)))
        for view in views:
            mine = [shared if view is views[0] else Appends(view, "shared", random.Random(rng.getrandbits(32)))]
            mine[0].prepare(1 if view is views[0] else None)
            parts = [mine, [], []]
            for node in range(NODES):
                part = f"{view.host}-{node}"
                own = random.Random(rng.getrandbits(32))
                objects = [Slots(view, f"{part}-small", 16, 3_000, own), Slots(view, f"{part}-tiny", 40, 100, own),
                           Slots(view, f"{part}-middle", 3, 30_000, own), Slots(view, f"{part}-large", 2, 300_000, own),
                           Appends(view, f"{part}-log", own), Attribute(view, f"{part}-attribute", own),
                           Token(view, f"{part}-token", ["d0", "d1", "d2"], own), Name(view, f"d{node}/{part}-name")]
                for object_ in objects:
                    object_.prepare(node)
                parts[node].extend(objects)
            self.parts.extend(parts)
        self.objects = [o for part in self.parts for o in part]

    def start(self, seed):
        works = [(self.operate, part) for part in self.parts] + [(self.look, view) for view in self.views]
        for number, (work, argument) in enumerate(works):
            arguments = (work, argument, random.Random(seed * 1000 + number))
            thread = threading.Thread(target=self.guarded, args=arguments, daemon=True)
            self.threads.append(thread)
            thread.start()

    def guarded(self, work, argument, rng):
        me = threading.current_thread()
        try:
            while True:
                if not self.go.is_set():
                    self.current.pop(me, None)
                    self.idle.add(me)
                    self.go.wait()
                    self.idle.discard(me)
                work(argument, rng, me)
                time.sleep(0.002)  # a load, not as much as the machine can
        except BaseException as error:  # shown by the main thread
            self.errors.append(error)

    def operate(self, objects, rng, me):
        # those first that have not yet been acknowledged since the network was healed
        behind = [o for o in objects if o.good_at < self.generation]
        object_ = rng.choice(behind if behind and not self.faulty else objects)
        generation, faulty = self.generation, self.faulty
        calm = not faulty and time.monotonic() - self.healed_at > CALM
        self.current[me] = (object_.label, time.monotonic())
        try:
            object_.step()
        except OSError as error:
            if error.errno not in ALLOWED:
                raise object_.wrong(f"{error}") from error
            self.failed += 1
            object_.failed = True
            if calm and generation == self.generation and not self.faulty:
                raise object_.wrong(f"more than {CALM} s after the last fault: {error}") from error
        else:
            self.acknowledged += 1
            if not faulty and generation == self.generation:
                object_.good_at = generation

    def look(self, view, rng, me):
        self.current[me] = (f"{view.host}: looking at names", time.monotonic())
        try:
            if rng.random() < 0.1:
                node, at = rng.randrange(NODES), rng.choice(("", "deep/"))
                listed = os.listdir(f"{view.top}/d{node}/{at}")
                for n in range(STATIC // NODES // 2):
                    if f"static{n}" not in listed:
                        raise Wrong(f"{view.host}: d{node}/{at}static{n} is missing in the listing")
            else:
                name = rng.choice(self.static)
                if rng.random() < 0.5:
                    os.stat(f"{view.top}/{name}")
                else:
                    os.close(os.open(f"{view.top}/{name}", os.O_RDONLY))
            self.looks += 1
        except FileNotFoundError as error:
            raise Wrong(f"{view.host}: a name that nobody has removed is denied: {error}") from error
        except OSError as error:
            if error.errno not in ALLOWED:
                raise Wrong(f"{view.host}: {error}") from error

    def look_for_errors(self):
        if self.errors:
            raise self.errors[0]
        for what, since in list(self.current.values()):
            if time.monotonic() - since > ANSWER:
                raise Wrong(f"{what}: no answer for {ANSWER} s")

    def wait(self, limit, what, condition):
        """True when the condition came; False after the limit, unless it has to come."""
        deadline = time.monotonic() + limit
        while not condition():
            self.look_for_errors()
            if time.monotonic() > deadline:
                if what:
                    raise Wrong(f"{what()}: not within {limit} s")
                return False
            time.sleep(0.01)
        return True

    def recovered(self):
        return all(o.good_at == self.generation for o in self.objects)

    def behind(self):
        return f"acknowledged after the heal: all but {[o.label for o in self.objects if o.good_at < self.generation][:8]}"

    def pause(self):
        self.go.clear()
        self.wait(ANSWER, lambda: f"a pause of {[self.current.get(t) for t in self.threads if t not in self.idle]}",
                  lambda: len(self.idle) == len(self.threads))

    def resume(self):
        self.go.set()


def sessions(network, cluster):
    """The sessions of mounts and nodes that the nodes know, seen from the router."""
    text = network.inside("net", os.environ["POLVO"], "status", "--json", "--cluster-dir", cluster)
    return {(node["node"], session["id"]) for node in json.loads(text)["nodes"]
            for session in node.get("sessions", []) if session["name"] != "polvo status"}


def choose_pairs(rng, views):
    """Who cannot talk to whom, and whose operations that disturbs."""
    roll = rng.randrange(4)
    view = rng.choice(views)
    nodes = view.nodes_to_lose()
    if roll == 0:
        node = rng.choice(nodes)
        return f"{view.host} without node {node}", [(view.host, f"n{node}")], [view]
    if roll == 1:
        return f"{view.host} alone", [(view.host, f"n{node}") for node in nodes], [view]
    if roll == 2:
        one, other = rng.sample(range(NODES), 2)
        return f"nodes {one} and {other}", [(f"n{one}", f"n{other}")], views
    node = rng.randrange(NODES)
    others = [f"n{n}" for n in range(NODES) if n != node] + [v.host for v in views if not v.host.startswith("n")]
    return f"node {node} alone", [(other, f"n{node}") for other in others], views


def mixed(rounds, seed, network, views, cluster):
    rng = random.Random(seed)
    os.mkdir(f"{views[0].mount}/mixed")
    for view in views:
        view.top = f"{view.mount}/mixed"
    load = Load(network, views, rng)
    load.start(seed)
    load.wait(RECOVERY, load.behind, load.recovered)
    slowest, ends = 0, {"brief": 0, "failure": 0, "lease": 0}
    for number in range(rounds):
        kind = rng.choice(KINDS)
        what, pairs, disturbed = choose_pairs(rng, views)
        end = rng.choices(("brief", "failure", "lease"), (3, 4, 1))[0]
        if kind in ("reset", "reject") and end == "lease":
            end = "failure"
        before = sessions(network, cluster) if end == "lease" else None
        for object_ in load.objects:
            object_.failed = False
        load.faulty = True
        network.cut(kind, pairs)
        started = time.monotonic()
        if end == "brief":
            hits = rng.choice((1, 5, 30))
            load.wait(10, None, lambda: network.hits() >= hits)
        elif end == "failure":
            load.wait(10, None, lambda: any(o.failed for o in load.objects if o.view in disturbed))
        else:
            load.wait(20, None, lambda: before - sessions(network, cluster))
        ends[end] += 1
        took = time.monotonic() - started
        network.heal()
        load.generation += 1
        load.faulty, load.healed_at = False, time.monotonic()
        started = time.monotonic()
        load.wait(RECOVERY, load.behind, load.recovered)
        back = time.monotonic() - started
        slowest = max(slowest, back)
        load.pause()
        check_all(load.objects, views, load.healed_at + CALM)
        load.resume()
        note(f"mixed {number + 1}: {what} ({kind}, until {end}, {took:.1f} s); all acknowledged after {back:.1f} s; "
             f"{load.acknowledged} done, {load.failed} failed so far")
    # once more, without any failure
    load.wait(2 * CALM, None, lambda: time.monotonic() - load.healed_at > CALM)
    load.generation += 1
    load.wait(RECOVERY, load.behind, load.recovered)
    load.pause()
    network.quiet(*(f"n{node}" for node in range(NODES)), *(view.host for view in views))
    check_all(load.objects, views, load.healed_at + CALM)
    print(f"{load.acknowledged} operations acknowledged, {load.failed} failed, {load.looks} looks at names; faults until "
          f"packets were lost {ends['brief']}, an operation failed {ends['failure']}, a lease ended {ends['lease']}; all "
          f"objects changed again at most {slowest:.1f} s after a heal")


# Somebody who has no secret.

CONNECTIONS = 300


def strangers(network, seconds, ready):
    """Silent connections, made anew whenever a node closes one."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    port = 7400
    targets = [network.address(f"n{node}") for node in range(NODES)]
    namespace = os.open(f"/run/netns/{network.prefix}-s0", os.O_RDONLY)
    if LIBC.setns(namespace, 0) != 0:
        raise Wrong(f"setns: {os.strerror(ctypes.get_errno())}")
    selector = selectors.DefaultSelector()
    made = closed = 0

    def connect(target):
        nonlocal made
        end = socket.socket()
        end.setblocking(False)
        end.connect_ex((target, port))
        selector.register(end, selectors.EVENT_READ, target)
        made += 1

    def established():
        ends = [key.fileobj for key in selector.get_map().values()]
        return sum(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1 for end in ends)

    anew = [target for target in targets for _ in range(CONNECTIONS)]
    started = time.monotonic()
    most, since = 0, started
    while (now := time.monotonic()) < started + seconds:
        for target in anew:
            connect(target)
        anew = []
        if not os.path.exists(ready):
            if (open_now := established()) > most:
                most, since = open_now, now
            # all of them, or as many as the nodes let in
            if open_now == CONNECTIONS * NODES or now - since > 1:
                make_file(ready)
        for key, _ in selector.select(0):
            try:
                ended = key.fileobj.recv(65536) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                closed += 1
                anew.append(key.data)
        time.sleep(0.1)  # silent ones, not as many as can be made
    print(f"{most} open at once, {made} made, {closed} closed by nodes")


def main(arguments):
    match arguments:
        case ["late", rounds, seed, prefix, *mounts]:
            late(int(rounds), int(seed), Network(prefix), [View(mount) for mount in mounts])
        case ["mixed", rounds, seed, prefix, cluster, *mounts]:
            mixed(int(rounds), int(seed), Network(prefix), [View(mount) for mount in mounts], cluster)
        case ["strangers", prefix, seconds, ready]:
            strangers(Network(prefix), float(seconds), ready)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Wrong, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # threads may be stuck in operations
    sys.stdout.flush()
    os._exit(0)
