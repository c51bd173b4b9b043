//! `fcntl` and `flock` through the kernel: two mounts of one cluster, real processes (Python, which has all three system
//! calls).

mod common;
use common::{Mounted, mount_at, mounted};
use polvo_client::Client;
use polvo_proto::Cred;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that does what it reads, a line at a time, and answers each with a line.
const PROGRAM: &str = r#"
import fcntl, os, struct, sys, errno
files = {}
def add_one(path, ofd):
    # closing is all the unlocking there is
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if ofd:
        fcntl.fcntl(fd, 38, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 5, ofd, 0))
    else:
        fcntl.flock(fd, fcntl.LOCK_EX)
    number = int(os.pread(fd, 32, 0) or b"0")
    os.pwrite(fd, b"%020d" % (number + 1), 0)
    os.close(fd)
def do(words):
    what, name = words[0], words[1]
    rest = [int(w) for w in words[2:]]
    if what == "add":
        for _ in range(rest[0]):
            add_one(sys.argv[1] + "/" + name, rest[1])
        return "done"
    if what == "open":
        files[name] = os.open(sys.argv[1] + "/" + name.rstrip("+"), os.O_RDWR | os.O_CREAT)
        return "done"
    fd = files[name]
    if what == "close":
        os.close(fd)
        return "done"
    if what == "flock":
        return fcntl.flock(fd, rest[0]) or "done"
    if what == "fcntl":
        return fcntl.lockf(fd, rest[0], rest[2], rest[1]) or "done"
    if what == "ofd":
        ask = struct.pack("hhqqi", rest[0], 0, rest[1], rest[2], 0)
        return (fcntl.fcntl(fd, 37, ask) and None) or "done"
    if what == "get":
        ask = struct.pack("hhqqi", fcntl.F_WRLCK, 0, rest[0], rest[1], 0)
        typ, _, first, count, pid = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, ask)[:28])
        return "free" if typ == fcntl.F_UNLCK else f"{'rw'[typ == fcntl.F_WRLCK]} {first} {count} {pid}"
    if what == "fork":
        pid = os.fork()
        if pid == 0:
            os.close(fd)
            os._exit(0)
        os.waitpid(pid, 0)
        return "done"
for line in sys.stdin:
    try:
        print(do(line.split()), flush=True)
    except OSError as e:
        print("EDEADLK" if e.errno == errno.EDEADLK else errno.errorcode[e.errno], flush=True)
"#;

const EX: &str = "2";
const SH: &str = "1";
const NB_EX: &str = "6";
const NB_SH: &str = "5";
const UN: &str = "8";

struct Process {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn in_dir(dir: &Path) -> Process {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Process { child, answers }
    }

    fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{line}").expect("it lives");
    }

    fn hear(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it lives");
        answer.trim().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
    }
}

/// Locks held and waited for at the node.
fn at_node(m: &Mounted) -> (u64, u64) {
    let status = m
        .client
        .run(|client| async move { client.ask(polvo_format::NodeId(0), polvo_proto::Request::Status).await });
    let Ok(polvo_proto::Reply::Json(status)) = status else {
        panic!("no status: {status:?}");
    };
    let number = |key: &str| {
        let locks = &status[status.find("\"locks\":").expect("locks")..];
        let at = locks.find(key).expect("a number") + key.len();
        let digits: String = locks[at..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    (number("\"held\":"), number("\"waits\":"))
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn processes_of_two_mounts_lock_each_other_out() {
    let Some(m) = mounted("") else { return };
    let other = Client::internal(m.node.colocated(), "other".to_owned(), Cred::Kernel);
    other.start_maintenance();
    let dir = m.dir.parent().expect("a parent").join("other");
    std::fs::create_dir(&dir).expect("writable");
    let mount = mount_at(&other, &dir, "").expect("mounted");
    {
        let (mut a, mut b) = (Process::in_dir(&m.dir), Process::in_dir(&dir));
        for process in [&mut a, &mut b] {
            for name in ["f", "f+"] {
                assert_eq!(process.ask(&format!("open {name}")), "done");
            }
        }
        ranges(&m, &mut a, &mut b);
        whole_files(&m, &mut a, &mut b);
        open_file_descriptions(&m, &mut a, &mut b);
        waits(&m, &mut a, &mut b);
        // a process that waits is killed
        assert_eq!(a.ask(&format!("fcntl f {EX} 0 0")), "done");
        b.say(&format!("fcntl f {EX} 0 0"));
        soon("it waits", || at_node(&m) == (1, 1));
        b.kill();
        soon("nothing is left of the killed one", || at_node(&m) == (1, 0));
        // and so is one that holds
        a.kill();
        soon("no lock is left", || at_node(&m) == (0, 0));
    }
    mount.unmount(false).expect("nobody uses it");
    other.shutdown();
}

/// Who opens, locks, adds one and closes, over and over, loses nothing: the kernel names the owner of such a lock after the
/// address of its open file, which the next open gets while the end of the last is still on its way.
#[test]
fn a_lock_that_ends_with_its_open_file_is_not_taken_for_the_next_one() {
    const ROUNDS: u32 = 400;
    let Some(m) = mounted("") else { return };
    let other = Client::internal(m.node.colocated(), "other".to_owned(), Cred::Kernel);
    other.start_maintenance();
    let dir = m.dir.parent().expect("a parent").join("other");
    std::fs::create_dir(&dir).expect("writable");
    let mount = mount_at(&other, &dir, "").expect("mounted");
    // flock, ranges of an open file, all of it
    for bytes in ["0", "7", "9223372036854775802"] {
        for (of, dirs) in [("one", [&m.dir; 4]), ("two", [&m.dir, &dir, &m.dir, &dir])] {
            let name = format!("{of}-{bytes}");
            let mut processes = dirs.map(|dir| Process::in_dir(dir));
            for process in &mut processes {
                process.say(&format!("add {name} {ROUNDS} {bytes}"));
            }
            for process in &mut processes {
                assert_eq!(process.hear(), "done");
            }
            let counted = std::fs::read_to_string(m.dir.join(&name)).expect("written");
            let expected = 4 * ROUNDS;
            assert_eq!(counted.parse(), Ok(expected), "{of} mount(s), locks of {bytes} bytes");
        }
    }
    soon("no lock is left", || at_node(&m) == (0, 0));
    mount.unmount(false).expect("nobody uses it");
    other.shutdown();
}

fn ranges(m: &Mounted, a: &mut Process, b: &mut Process) {
    assert_eq!(a.ask(&format!("fcntl f {EX} 100 50")), "done");
    assert_eq!(b.ask("get f 0 0"), format!("w 100 50 {}", a.pid()));
    assert_eq!(b.ask("get f 0 100"), "free");
    assert_eq!(a.ask("get f 0 0"), "free", "one's own locks are not in the way");
    assert_eq!(b.ask(&format!("fcntl f {NB_EX} 149 1")), "EAGAIN");
    assert_eq!(b.ask(&format!("fcntl f {NB_EX} 150 1")), "done");
    assert_eq!(a.ask(&format!("fcntl f {SH} 120 10")), "done", "in the middle");
    assert_eq!(at_node(m), (4, 0));
    assert_eq!(b.ask(&format!("fcntl f {NB_SH} 120 10")), "done");
    assert_eq!(b.ask("get f 110 40"), format!("w 100 20 {}", a.pid()));
    assert_eq!(a.ask(&format!("fcntl f {UN} 0 125")), "done");
    assert_eq!(b.ask("get f 0 0"), format!("r 125 5 {}", a.pid()));
    // POSIX: closing any descriptor of the file ends all locks of the process, and so of no other
    assert_eq!(a.ask("fork f+"), "done");
    assert_eq!(
        b.ask("get f 130 20"),
        format!("w 130 20 {}", a.pid()),
        "the child's close is not the parent's"
    );
    assert_eq!(a.ask("close f+"), "done");
    assert_eq!(b.ask("get f 0 0"), "free");
    assert_eq!(at_node(m), (2, 0));
    assert_eq!(b.ask(&format!("fcntl f {UN} 0 0")), "done");
    assert_eq!(a.ask("open f+"), "done");
    assert_eq!(at_node(m), (0, 0));
}

fn whole_files(m: &Mounted, a: &mut Process, b: &mut Process) {
    assert_eq!(a.ask(&format!("flock f {EX}")), "done");
    assert_eq!(b.ask(&format!("flock f {NB_SH}")), "EAGAIN");
    assert_eq!(
        a.ask(&format!("flock f+ {NB_SH}")),
        "EAGAIN",
        "another open file of the same process"
    );
    assert_eq!(
        b.ask(&format!("fcntl f {NB_EX} 0 0")),
        "done",
        "fcntl is another matter"
    );
    assert_eq!(b.ask(&format!("fcntl f {UN} 0 0")), "done");
    assert_eq!(a.ask("fork f"), "done");
    assert_eq!(b.ask(&format!("flock f {NB_SH}")), "EAGAIN", "it is open here still");
    assert_eq!(a.ask(&format!("flock f {SH}")), "done");
    assert_eq!(b.ask(&format!("flock f {NB_SH}")), "done");
    // both want it alone: each lets go first, so both get it, one after the other
    a.say(&format!("flock f {EX}"));
    soon("it waits", || at_node(m) == (1, 1));
    b.say(&format!("flock f {EX}"));
    assert_eq!(a.hear(), "done");
    assert_eq!(a.ask("close f"), "done");
    assert_eq!(b.hear(), "done");
    assert_eq!(b.ask(&format!("flock f {UN}")), "done");
    assert_eq!(a.ask("open f"), "done");
    assert_eq!(at_node(m), (0, 0));
}

fn open_file_descriptions(m: &Mounted, a: &mut Process, b: &mut Process) {
    const WRITE: &str = "1";
    assert_eq!(a.ask(&format!("ofd f {WRITE} 10 10")), "done");
    assert_eq!(a.ask(&format!("ofd f+ {WRITE} 15 10")), "EAGAIN");
    assert_eq!(b.ask(&format!("ofd f {WRITE} 15 10")), "EAGAIN");
    assert_eq!(a.ask("close f+"), "done");
    assert_eq!(b.ask(&format!("ofd f {WRITE} 15 10")), "EAGAIN", "another open file");
    assert_eq!(a.ask("close f"), "done");
    soon("they end with their open file", || at_node(m) == (0, 0));
    assert_eq!(a.ask("open f"), "done");
    assert_eq!(a.ask("open f+"), "done");
}

fn waits(m: &Mounted, a: &mut Process, b: &mut Process) {
    for (lock, unlock) in [
        (format!("fcntl f {EX} 5 5"), format!("fcntl f {UN} 0 0")),
        (format!("flock f {EX}"), format!("flock f {UN}")),
    ] {
        for a_first in [true, false] {
            let (one, two) = if a_first {
                (&mut *a, &mut *b)
            } else {
                (&mut *b, &mut *a)
            };
            assert_eq!(one.ask(&lock), "done");
            two.say(&lock);
            soon("it waits", || at_node(m) == (1, 1));
            assert_eq!(one.ask(&unlock), "done");
            assert_eq!(two.hear(), "done");
            assert_eq!(two.ask(&unlock), "done");
        }
        assert_eq!(at_node(m), (0, 0));
    }
    // a deadlock
    assert_eq!(a.ask(&format!("fcntl f {EX} 0 1")), "done");
    assert_eq!(b.ask(&format!("fcntl f {EX} 1 1")), "done");
    a.say(&format!("fcntl f {EX} 1 1"));
    soon("it waits", || at_node(m) == (2, 1));
    assert_eq!(b.ask(&format!("fcntl f {EX} 0 1")), "EDEADLK");
    assert_eq!(b.ask(&format!("fcntl f {UN} 0 0")), "done");
    assert_eq!(a.hear(), "done");
    assert_eq!(a.ask(&format!("fcntl f {UN} 0 0")), "done");
    assert_eq!(at_node(m), (0, 0));
}

#[test]
fn a_mount_may_keep_its_locks_to_itself() {
    let Some(m) = mounted("nolock") else { return };
    let (mut a, mut b) = (Process::in_dir(&m.dir), Process::in_dir(&m.dir));
    for process in [&mut a, &mut b] {
        assert_eq!(process.ask("open f"), "done");
    }
    assert_eq!(a.ask(&format!("flock f {EX}")), "done");
    assert_eq!(b.ask(&format!("flock f {NB_EX}")), "EAGAIN");
    assert_eq!(b.ask(&format!("fcntl f {NB_EX} 0 5")), "done");
    assert_eq!(a.ask(&format!("fcntl f {NB_EX} 4 5")), "EAGAIN");
    assert_eq!(at_node(&m), (0, 0), "the node knows nothing of them");
}
