//! Files mapped over two mounts at once: one of them may map a file shared and writable; what the others do goes on.

mod common;
use common::{Mounted, mount_at, mounted};
use polvo_client::Client;
use polvo_fuse::Mount;
use polvo_proto::Cred;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Opens a file (`r`: read-only) and says how shared writable, shared and private mappings of it go; then keeps the file open and
/// mapped until it is told to end.
const MAP: &str = r#"
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY if sys.argv[2] == "r" else os.O_RDWR)
kept = []
def said(flags, protection):
    try:
        mapping = mmap.mmap(fd, 4096, flags, protection)
    except OSError as error:
        return errno.errorcode[error.errno]
    kept.append(mapping)
    return mapping[:5].decode()
READ, WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
print(said(mmap.MAP_SHARED, WRITE), said(mmap.MAP_SHARED, READ), said(mmap.MAP_PRIVATE, READ), flush=True)
sys.stdin.read()
"#;

/// Stores to a mapping.
const STORE: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(fd, 4096)
mapping[:5] = b"wrong"
"#;

/// Adds to a counter in a mapping, under a lock; or says why it cannot.
const COUNT: &str = r#"
import errno, fcntl, mmap, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    mapping = mmap.mmap(fd, 4096)
except OSError as error:
    sys.exit(print(errno.errorcode[error.errno]))
for _ in range(int(sys.argv[2])):
    fcntl.lockf(fd, fcntl.LOCK_EX)
    struct.pack_into("q", mapping, 0, struct.unpack_from("q", mapping, 0)[0] + 1)
    mapping.flush()
    fcntl.lockf(fd, fcntl.LOCK_UN)
print("counted")
"#;

/// Adds rows to an SQLite database with a write-ahead log, and says how many were committed; or why it could not.
const ROWS: &str = r#"
import sqlite3, sys
committed = 0
try:
    db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    print("open", flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[2])):
        db.execute("INSERT INTO t VALUES (?)", (n,))
        committed += 1
    print(db.execute("SELECT count(*) FROM t").fetchone()[0])
except sqlite3.Error as error:
    print(type(error).__name__, committed)
"#;

struct Two {
    a: PathBuf,
    b: PathBuf,
    other: Arc<Client>,
    mount: Option<Mount>,
    _first: Mounted,
}

impl Drop for Two {
    fn drop(&mut self) {
        drop(self.mount.take());
        self.other.shutdown();
    }
}

fn two_mounts(options: &str) -> Option<Two> {
    let first = mounted(options)?;
    let other = Client::internal(first.node.colocated(), "other".to_owned(), Cred::Kernel);
    other.start_maintenance();
    let b = first.dir.parent().expect("a parent").join("other");
    fs::create_dir(&b).expect("writable");
    let mount = mount_at(&other, &b, options).expect("mounted");
    Some(Two {
        a: first.dir.clone(),
        b,
        other,
        mount: Some(mount),
        _first: first,
    })
}

fn python(program: &str, arguments: &[&str]) -> Child {
    let mut python = Command::new("python3");
    python.args(["-c", program]).args(arguments);
    let python = python
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    python.spawn().expect("python3 is there")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test is text")
}

/// A program that has a file open and mapped.
struct Mapped {
    said: String,
    python: Child,
}

impl Mapped {
    fn new(path: &Path, how: &str) -> Mapped {
        let mut python = python(MAP, &[text(path), how]);
        let mut said = String::new();
        let stdout = python.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("a line");
        let said = said.trim().to_owned();
        Mapped { said, python }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        drop(self.python.stdin.take());
        self.python.wait().expect("it ends");
    }
}

/// What a program says of its mappings of a file.
fn said(path: &Path, how: &str) -> String {
    Mapped::new(path, how).said.clone()
}

/// A file that was closed elsewhere can be mapped soon: the kernel tells us of a close when it has happened.
fn soon_says(path: &Path, how: &str, expected: &str) {
    let since = Instant::now();
    loop {
        match said(path, how) {
            said if said == expected => return,
            said => assert!(since.elapsed() < Duration::from_secs(30), "{said}"),
        }
    }
}

fn read_write(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("opening never fails")
}

fn file_of_a_page(path: &Path) {
    fs::write(path, b"bytes".repeat(PAGE)).expect("written");
}

const ALL: &str = "bytes bytes bytes";
const NONE: &str = "ENODEV ENODEV ENODEV";
const READ_ONLY: &str = "EACCES bytes bytes";

#[test]
fn a_file_that_is_open_for_writing_elsewhere_cannot_be_mapped() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    soon_says(&a, "w", ALL);
    soon_says(&b, "w", ALL);
    let openers: [(&str, &dyn Fn() -> File); 3] = [
        ("for both", &|| read_write(&a)),
        ("for writing", &|| File::options().write(true).open(&a).expect("opened")),
        ("to append", &|| File::options().append(true).open(&a).expect("opened")),
    ];
    for (how, open) in openers {
        soon_says(&a, "w", ALL);
        let held = open();
        assert_eq!(said(&b, "w"), NONE, "open {how}");
        soon_says(&a, "w", ALL); // on that mount it can
        drop(held);
        soon_says(&b, "w", ALL);
    }
    // a mapping outlives the file descriptor, and so does the right to it
    let mapped = Mapped::new(&a, "w");
    assert_eq!(mapped.said, ALL);
    assert_eq!(said(&b, "w"), NONE);
    drop(mapped);
    soon_says(&b, "w", ALL);
}

#[test]
fn a_new_file_is_mapped_by_who_made_it() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    let mut new = File::options();
    let made = new.read(true).write(true).create_new(true).open(&a).expect("made");
    made.write_all_at(&b"bytes".repeat(PAGE), 0).expect("written");
    assert_eq!(said(&b, "w"), NONE);
    assert_eq!(said(&a, "w"), ALL);
    drop(made);
    soon_says(&b, "w", ALL);
}

#[test]
fn reading_and_writing_goes_on_from_both_mounts() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let (on_a, on_b) = (read_write(&a), read_write(&b));
    let reader = File::open(&b).expect("opened");
    for (n, (from, to)) in (0u64..).zip([(&on_a, &on_b), (&on_b, &on_a), (&on_a, &reader)]) {
        from.write_all_at(b"written", n * 100).expect("written");
        let mut read = [0; 7];
        to.read_exact_at(&mut read, n * 100).expect("read");
        assert_eq!(&read, b"written");
    }
    let mut appending = File::options().append(true).open(&b).expect("opened");
    std::io::Write::write_all(&mut appending, b"end").expect("appended");
    assert_eq!(on_a.metadata().expect("there").len(), 5 * PAGE as u64 + 3);
    on_b.set_len(100).expect("truncated");
    assert_eq!(on_a.metadata().expect("there").len(), 100);
    on_b.sync_all().expect("synced");
    fs::copy(&a, m.b.join("copy")).expect("copied");
    assert_eq!(fs::read(m.a.join("copy")).expect("read"), fs::read(&b).expect("read"));
    assert_eq!(fs::read(&b).expect("read").len(), 100);
    for file in [on_a, on_b] {
        file.set_len(0).expect("truncated");
    }
    fs::remove_file(&b).expect("removed");
}

#[test]
fn files_are_opened_in_any_order_on_any_mount() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let held = read_write(&a);
    // readers and writers of the other mount at once: the kernel wants them to agree
    std::thread::scope(|scope| {
        for n in 0..6 {
            let b = &b;
            scope.spawn(move || {
                for _ in 0..100 {
                    match n % 3 {
                        0 => drop(read_write(b)),
                        1 => drop(File::open(b).expect("opening never fails")),
                        _ => drop(File::options().write(true).open(b).expect("opening never fails")),
                    }
                }
            });
        }
    });
    // what was opened before cannot be mapped while a writer is there
    soon_says(&b, "r", READ_ONLY);
    let writer = read_write(&b);
    assert_eq!(said(&b, "r"), "EACCES ENODEV ENODEV");
    drop((writer, held));
    soon_says(&b, "w", ALL);
}

#[test]
fn what_is_opened_to_read_is_mapped_on_every_mount() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let on_both = [Mapped::new(&a, "r"), Mapped::new(&b, "r")];
    assert!(on_both.iter().all(|mapped| mapped.said == READ_ONLY));
    drop(on_both);
    let writer = read_write(&a);
    assert_eq!(said(&b, "r"), READ_ONLY, "a writer elsewhere is not in the way");
    assert_eq!(said(&a, "r"), READ_ONLY);
    drop(writer);
    // programs are mapped
    fs::copy("/bin/true", m.a.join("true")).expect("copied");
    fs::set_permissions(m.a.join("true"), fs::Permissions::from_mode(0o755)).expect("changed");
    for dir in [&m.a, &m.b] {
        let since = Instant::now();
        let run = || Command::new(dir.join("true")).status();
        let ended = loop {
            match run() {
                // the copy is closed soon
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    assert!(since.elapsed() < Duration::from_secs(30), "{error}");
                }
                ended => break ended,
            }
        };
        assert!(ended.expect("it runs").success());
    }
}

#[test]
fn a_writer_comes_to_a_file_that_is_mapped_to_be_read() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let writer = read_write(&a);
    let reader = Mapped::new(&b, "r");
    assert_eq!(reader.said, READ_ONLY);
    // neither can the mapping be taken back, nor may the new file be mapped
    let refused = File::options()
        .read(true)
        .write(true)
        .open(&b)
        .expect_err("mapped there");
    assert_eq!(refused.raw_os_error(), Some(5));
    File::options()
        .write(true)
        .open(&b)
        .expect("who cannot map it may write");
    drop(writer);
    soon_says(&b, "w", ALL);
    drop(reader);
}

#[test]
fn a_writer_comes_to_a_file_that_is_read_by_way_of_pages() {
    let Some(m) = two_mounts("cache=pages") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let writer = read_write(&a);
    let reader = Mapped::new(&b, "r");
    assert_eq!(reader.said, READ_ONLY);
    // the kernel cannot refuse another mapping, but it gets no page for it
    let storing = python(STORE, &[text(&b)]).wait_with_output().expect("it ends");
    assert_eq!(storing.status.signal(), Some(libc::SIGBUS), "{storing:?}");
    let expected = b"bytes".repeat(PAGE);
    for path in [&a, &b] {
        assert!(fs::read(path).expect("readable") == expected, "{}", path.display());
    }
    File::options()
        .write(true)
        .open(&b)
        .expect("who cannot map it may write")
        .write_all_at(b"BYTES", 0)
        .expect("written");
    for path in [&a, &b] {
        assert_eq!(&fs::read(path).expect("readable")[..6], b"BYTESb", "{}", path.display());
    }
    drop(writer);
    drop(reader);
    soon_says(&b, "w", "BYTES BYTES BYTES");
}

#[test]
fn direct_io_goes_on() {
    const O_DIRECT: i32 = 0o40000;
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    file_of_a_page(&a);
    let _writer = read_write(&a);
    let mut directly = File::options();
    directly.read(true).write(true).custom_flags(O_DIRECT);
    directly.open(&b).expect("nothing is mapped so");
    let _other = read_write(&b);
    let refused = directly.open(&b).expect_err("cannot be kept from being mapped");
    assert_eq!(refused.raw_os_error(), Some(22));
}

#[test]
fn a_counter_in_a_mapping_loses_nothing() {
    const TIMES: u64 = 200;
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("f"), m.b.join("f"));
    fs::write(&a, [0; PAGE]).expect("written");
    soon_says(&a, "r", "EACCES \0\0\0\0\0 \0\0\0\0\0");
    let both = [&a, &b].map(|path| python(COUNT, &[text(path), &TIMES.to_string()]));
    let counted = both.map(|process| {
        let output = process.wait_with_output().expect("it ends");
        match String::from_utf8_lossy(&output.stdout).trim() {
            "counted" => TIMES,
            "ENODEV" => 0,
            other => panic!("{other}"),
        }
    });
    let mut counter = [0; 8];
    File::open(&b)
        .expect("opened")
        .read_exact_at(&mut counter, 0)
        .expect("read");
    assert_eq!(u64::from_ne_bytes(counter), counted.iter().sum::<u64>());
}

#[test]
fn sqlite_with_a_write_ahead_log_loses_nothing() {
    let Some(m) = two_mounts("") else { return };
    let (a, b) = (m.a.join("db"), m.b.join("db"));
    let mut first = python(ROWS, &[text(&a), "100"]);
    let mut line = String::new();
    BufReader::new(first.stdout.as_mut().expect("piped"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line.trim(), "open");
    let rows = |path: &Path, rows: &str| {
        let output = python(ROWS, &[text(path), rows]).wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(rows(&b, "100"), "OperationalError 0");
    let output = first.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "100");
    let since = Instant::now();
    loop {
        match rows(&b, "100").as_str() {
            "open\n200" => break,
            "OperationalError 0" => assert!(since.elapsed() < Duration::from_secs(30)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(rows(&b, "1"), "open\n201");
}

#[test]
fn mounts_may_be_told_otherwise() {
    for (option, expected) in [("mmap=shared", ALL), ("mmap=private", "ENODEV ENODEV bytes")] {
        let Some(m) = two_mounts(option) else { return };
        file_of_a_page(&m.a.join("f"));
        let _held = read_write(&m.a.join("f"));
        assert_eq!(said(&m.b.join("f"), "w"), expected, "{option}");
    }
}
