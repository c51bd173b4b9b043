//! Files that are read by way of the kernel's pages: without requests, and never as they were.

mod common;
use common::{Mounted, mounted};
use polvo_client::{Client, LocalClient};
use polvo_proto::{Cred, InodeRef, SetAttr, TimeChange};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Changes in each of these tests.
const ROUNDS: u8 = 40;

/// Somebody else, who changes files by the library.
struct Other(Arc<Client>);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

impl Other {
    fn new(of: &Mounted) -> Other {
        let client = Client::internal(of.node.colocated(), "other".to_owned(), Cred::Kernel);
        client.start_maintenance();
        Other(client)
    }

    fn with<T, F: Future<Output = T>>(&self, does: impl FnOnce(std::rc::Rc<LocalClient>) -> F) -> T {
        self.0.run(does)
    }

    fn find(&self, name: &str) -> InodeRef {
        self.with(|client| async move {
            let root = client.resolve(polvo_format::Ino::ROOT).await.expect("there");
            let attr = client.lookup(root, name.as_bytes()).await.expect("there");
            InodeRef {
                ino: attr.ino,
                generation: attr.generation,
            }
        })
    }

    /// Overwrites in place; nothing else of the file looks different after.
    fn overwrites(&self, inode: InodeRef, offset: u64, bytes: &[u8]) {
        self.with(|client| async move {
            let before = client.get_attr(inode).await.expect("there");
            let file = client.open_to_write(inode, false).await.expect("opened");
            client.write(&file, offset, bytes).await.expect("written");
            let set = SetAttr {
                mtime: Some(TimeChange::To(before.mtime_ns)),
                ..SetAttr::default()
            };
            client.set_attr(inode, set).await.expect("set");
        });
    }
}

fn file_of(path: &Path, byte: u8, pages: usize) {
    fs::write(path, vec![byte; pages * PAGE]).expect("written");
}

fn read_at(file: &File, offset: usize) -> u8 {
    let mut bytes = [0; PAGE];
    file.read_exact_at(&mut bytes, offset as u64).expect("read");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a page is of one write");
    bytes[0]
}

/// Requests of a kind so far.
fn requests(of: &Mounted, kind: &str) -> u64 {
    let mut value = vec![0; 8192];
    let len = rustix::fs::getxattr(&of.dir, "user.polvo.counters", &mut value).expect("a mount has counters");
    let counters = String::from_utf8(value[..len].to_vec()).expect("text");
    let after = counters.split(&format!("\"{kind}\":")).nth(1).unwrap_or("0");
    let digits = after.chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}

fn reads(of: &Mounted) -> u64 {
    requests(of, "READ")
}

/// Until its tokens have come, a mount asks; then it does not.
fn is_read_without_requests(of: &Mounted, file: &File) {
    let since = Instant::now();
    let asked = || reads(of) + requests(of, "GETATTR");
    loop {
        let before = asked();
        for _ in 0..100 {
            read_at(file, 0);
        }
        // those for the counters are among them
        if asked() < before + 10 {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "each read is a request");
    }
}

#[test]
fn what_is_read_again_needs_no_request() {
    let Some(m) = mounted("cache=pages") else { return };
    let path = m.dir.join("f");
    file_of(&path, b'a', 4);
    let file = soon_cached(&m, &path);
    // kept when it is closed
    drop(file);
    let before = reads(&m);
    let again = File::open(&path).expect("opened");
    assert_eq!(read_at(&again, 2 * PAGE), b'a');
    assert_eq!(reads(&m), before, "read ahead before");
}

/// Opens a file as soon as nobody here has it open for writing, and reads it until that needs no requests.
fn soon_cached(of: &Mounted, path: &Path) -> File {
    let since = Instant::now();
    loop {
        let file = File::open(path).expect("opened");
        read_at(&file, 0);
        let before = reads(of);
        for _ in 0..10 {
            read_at(&file, 0);
        }
        if reads(of) == before {
            is_read_without_requests(of, &file);
            return file;
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it is not read by way of pages"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_somebody_else_writes_is_read_at_once() {
    let Some(m) = mounted("cache=pages") else { return };
    let path = m.dir.join("f");
    file_of(&path, 0, 2);
    let other = Other::new(&m);
    let inode = other.find("f");
    let file = soon_cached(&m, &path);
    for round in 1..ROUNDS {
        other.overwrites(inode, PAGE as u64, &vec![round; PAGE]);
        assert_eq!((read_at(&file, 0), read_at(&file, PAGE)), (0, round));
        let opened_anew = File::open(&path).expect("opened");
        assert_eq!((read_at(&opened_anew, 0), read_at(&opened_anew, PAGE)), (0, round));
        if round % 10 == 0 {
            is_read_without_requests(&m, &file); // a token has come again
        }
    }
    let truncated = SetAttr {
        size: Some(PAGE as u64 + 7),
        ..SetAttr::default()
    };
    other.with(|client| async move { client.set_attr(inode, truncated).await.expect("set") });
    let mut bytes = vec![0; 3 * PAGE];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), PAGE + 7);
    assert_eq!(file.metadata().expect("there").size(), PAGE as u64 + 7);
}

#[test]
fn what_was_just_written_is_read_by_way_of_pages() {
    let Some(m) = mounted("cache=pages") else { return };
    for n in 0..20 {
        let path = m.dir.join(n.to_string());
        file_of(&path, n, 1);
        // nobody waits for the kernel to say that the last one has closed it, only that one has
        let file = File::open(&path).expect("opened");
        read_at(&file, 0);
        let before = reads(&m);
        assert_eq!(read_at(&file, 0), n);
        assert_eq!(reads(&m), before);
    }
}

/// truncate(2), for which a file is not opened.
fn truncate(path: &Path, size: u64) {
    let program = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))";
    let mut python = Command::new("python3");
    let done = python.args(["-c", program]).arg(path).arg(size.to_string()).status();
    assert!(done.expect("python3 is there").success());
}

#[test]
fn what_this_mount_writes_is_read_at_once() {
    let Some(m) = mounted("cache=pages") else { return };
    let path = m.dir.join("f");
    file_of(&path, 0, 4);
    let reader = soon_cached(&m, &path);
    let writer = File::options().write(true).open(&path).expect("opened");
    for round in 1..ROUNDS {
        writer.write_all_at(&vec![round; PAGE], PAGE as u64).expect("written");
        assert_eq!((read_at(&reader, 0), read_at(&reader, PAGE)), (0, round));
    }
    let beside = File::open(&path).expect("opened");
    writer.write_all_at(&vec![77; PAGE], 0).expect("written");
    assert_eq!((read_at(&beside, 0), read_at(&reader, 0)), (77, 77));
    truncate(&path, 5000);
    let mut bytes = vec![1; 4 * PAGE];
    assert_eq!(reader.read_at(&mut bytes, 0).expect("read"), 5000);
    drop(writer);
    truncate(&path, 9000);
    assert_eq!(reader.read_at(&mut bytes, 0).expect("read"), 9000);
    assert!(bytes[5000..9000].iter().all(|byte| *byte == 0), "a hole");
    File::options().write(true).truncate(true).open(&path).expect("opened");
    assert_eq!(reader.read_at(&mut bytes, 0).expect("read"), 0);
}

/// Says what the first byte of a mapping is, each time it is asked.
const LOOK: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapping = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
for _ in sys.stdin:
    print(mapping[0], flush=True)
"#;

#[test]
fn a_mapping_of_a_file_that_is_only_read_follows_what_others_write() {
    let Some(m) = mounted("cache=pages") else { return };
    let path = m.dir.join("f");
    file_of(&path, 1, 1);
    let other = Other::new(&m);
    let inode = other.find("f");
    let file = soon_cached(&m, &path);
    let mut looking = Command::new("python3")
        .args(["-c", LOOK])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there");
    let mut answers = BufReader::new(looking.stdout.take().expect("piped"));
    let mut asked = looking.stdin.take().expect("piped");
    let mut look = || {
        writeln!(asked, "what is it").expect("it lives");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("a line");
        answer.trim().parse::<u8>().expect("a number")
    };
    assert_eq!(look(), 1);
    for round in 2..12 {
        // a token is there: who writes waits until the page is gone
        is_read_without_requests(&m, &file);
        other.overwrites(inode, 0, &[round; PAGE]);
        assert_eq!(look(), round);
    }
    drop(asked);
    looking.wait().expect("it ends");
}

#[test]
fn a_mount_may_be_told_to_keep_nothing() {
    for options in ["cache=none", "cache=strict", "cache=pages,strictatime"] {
        let Some(m) = mounted(options) else { return };
        let path = m.dir.join("f");
        file_of(&path, 3, 1);
        let file = File::open(&path).expect("opened");
        let before = reads(&m);
        for _ in 0..10 {
            assert_eq!(read_at(&file, 0), 3);
        }
        assert_eq!(reads(&m), before + 10, "{options}");
    }
}
