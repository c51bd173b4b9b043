//! A small file system, mounted: what becomes of requests whose handlers do not answer, panic, wait or are interrupted.

use polvo_fusedev::abi::*;
use polvo_fusedev::*;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::FromZeros;

/// Threads that serve requests, at most.
const READERS: usize = 4;
const LONG: Duration = Duration::from_secs(20);

/// Names are what their handlers do.
const NAMES: [&str; 6] = ["file", "dropped", "panics", "elsewhere", "stuck", "locked"];
const SIZE: u64 = 1 << 20;

#[derive(Default)]
struct Shared {
    forgotten: AtomicU64,
    /// Waits that an interrupt ends.
    waits: Mutex<HashMap<u64, Reply<()>>>,
    waiting: Mutex<Option<Sender<()>>>,
    ended: AtomicBool,
}

struct Small {
    shared: Arc<Shared>,
    /// What `stuck` waits for.
    free: Mutex<Receiver<()>>,
    /// It says that it waits.
    polite: bool,
}

impl Drop for Small {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
    }
}

fn attributes(node: INodeNo) -> Attr {
    let mut attr = Attr::new_zeroed();
    attr.ino = node;
    (attr.nlink, attr.blksize, attr.size) = (1, 4096, SIZE);
    attr.mode = if node == INodeNo::ROOT { 0o040755 } else { 0o100644 };
    attr
}

fn bytes_at(offset: u64, len: usize) -> Vec<u8> {
    let end = SIZE.min(offset + len as u64).max(offset);
    (offset..end).map(|at| (at / 4096) as u8).collect()
}

impl FileSystem for Small {
    fn init(&mut self, connection: &mut Connection) {
        assert_eq!(connection.want(init::POSIX_LOCKS | init::FLOCK_LOCKS), 0);
    }

    fn forget(&self, _: INodeNo, lookups: u64) {
        self.shared.forgotten.fetch_add(lookups, Ordering::SeqCst);
    }

    fn interrupt(&self, unique: u64) {
        if let Some(reply) = self.shared.waits.lock().unwrap().remove(&unique) {
            reply.error(Errno::INTR);
        }
    }

    fn lookup(&self, _: &Header, name: &OsStr, reply: Reply<EntryOut>) {
        match NAMES.iter().position(|known| name == *known) {
            Some(at) => reply.ok(&EntryOut::new(
                attributes(INodeNo(at as u64 + 2)),
                1,
                Duration::ZERO,
                Duration::ZERO,
            )),
            None => reply.error(Errno::NOENT),
        }
    }

    fn getattr(&self, req: &Header, _: &GetattrIn, reply: Reply<AttrOut>) {
        reply.ok(&AttrOut::new(attributes(req.node), Duration::ZERO));
    }

    fn open(&self, req: &Header, _: &OpenIn, reply: Reply<OpenOut>) {
        match NAMES[req.node.0 as usize - 2] {
            "dropped" => drop(reply),
            "panics" => panic!("as it should"),
            _ => reply.ok(&OpenOut::new(FileHandle(req.node.0), fopen::DIRECT_IO)),
        }
    }

    fn read(&self, req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        let bytes = bytes_at(asked.offset, asked.size as usize);
        match NAMES[req.node.0 as usize - 2] {
            "elsewhere" => {
                std::thread::spawn(move || reply.ok(&bytes));
            }
            "stuck" => {
                if self.polite {
                    will_wait();
                }
                let free = self.free.lock().unwrap();
                free.recv().unwrap();
                reply.ok(&bytes);
            }
            _ => reply.ok(&bytes),
        }
    }

    fn setlk(&self, _: &Header, asked: &LkIn, wait: bool, reply: Reply<()>) {
        if !wait {
            return reply.give(if asked.is_flock() { Ok(()) } else { Err(Errno::AGAIN) });
        }
        self.shared.waits.lock().unwrap().insert(reply.unique(), reply);
        if let Some(waiting) = &*self.shared.waiting.lock().unwrap() {
            waiting.send(()).unwrap();
        }
    }

    fn readdir(&self, req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        let mut buffer = Vec::new();
        let mut listing = Listing::new(&mut buffer, asked.size);
        let all = [".", ".."].into_iter().chain(NAMES);
        for (at, name) in all.enumerate().skip(asked.offset as usize) {
            if !listing.add(req.node, at as u64 + 1, 0o100000, name.as_bytes()) {
                break;
            }
        }
        reply.ok(listing.bytes());
    }
}

struct Mounted {
    dir: PathBuf,
    shared: Arc<Shared>,
    free: Sender<()>,
    session: Option<Session>,
    _home: tempfile::TempDir,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..READERS {
            let _ = self.free.send(());
        }
        let flags = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::FORCE;
        rustix::mount::unmount(&self.dir, flags).expect("it is mounted");
        if let Some(session) = self.session.take() {
            session.join().expect("a good end");
            assert!(self.shared.ended.load(Ordering::SeqCst), "the file system has gone");
        }
    }
}

fn mounted(polite: bool) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("not tested: mounting needs root and /dev/fuse");
        return None;
    }
    let home = tempfile::tempdir().expect("a directory for the test");
    let dir = home.path().canonicalize().expect("it is there").join("mnt");
    fs::create_dir(&dir).expect("writable");
    let (free, is_free) = channel();
    let shared = Arc::new(Shared::default());
    let small = Small {
        shared: shared.clone(),
        free: Mutex::new(is_free),
        polite,
    };
    let parameters = MountParameters {
        fsname: "small".to_owned(),
        subtype: "small".to_owned(),
        ..MountParameters::default()
    };
    let session =
        Session::mount(small, &dir, &parameters, NonZeroUsize::new(READERS).expect("not 0")).expect("mounted");
    Some(Mounted {
        dir,
        shared,
        free,
        session: Some(session),
        _home: home,
    })
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn it_is_a_file_system() {
    let Some(m) = mounted(true) else { return };
    let mut names: Vec<_> = fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let mut expected = NAMES;
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(fs::metadata(m.dir.join("file")).unwrap().ino(), 2);
    let mut all = Vec::new();
    File::open(m.dir.join("elsewhere"))
        .unwrap()
        .read_to_end(&mut all)
        .unwrap();
    assert_eq!(all, bytes_at(0, SIZE as usize));
    assert_eq!(errno(fs::metadata(m.dir.join("none"))), Some(libc_errno(Errno::NOENT)));
    assert_eq!(
        errno(fs::create_dir(m.dir.join("new"))),
        Some(libc_errno(Errno::NOSYS)),
        "no handler"
    );
    drop(fs::remove_file(m.dir.join("file")));
    m.session
        .as_ref()
        .unwrap()
        .notifier()
        .inval_inode(INodeNo(2), Some((0, 0)))
        .expect("known or not");
    m.session
        .as_ref()
        .unwrap()
        .notifier()
        .inval_entry(INodeNo::ROOT, b"file", Entry::Drop)
        .expect("known or not");
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    for _ in 0..200 {
        if m.shared.forgotten.load(Ordering::SeqCst) > 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing was forgotten");
}

fn libc_errno(errno: Errno) -> i32 {
    errno.raw_os_error()
}

#[test]
fn a_request_without_an_answer_fails() {
    let Some(m) = mounted(true) else { return };
    for name in ["dropped", "panics"] {
        assert_eq!(
            errno(File::open(m.dir.join(name))),
            Some(libc_errno(Errno::IO)),
            "{name}"
        );
    }
    assert!(fs::metadata(m.dir.join("file")).is_ok(), "it goes on");
}

/// Whether the rest of the mount goes on while handlers are stuck, fewer than there are threads.
fn goes_on_beside_stuck_handlers(polite: bool) {
    let Some(m) = mounted(polite) else { return };
    let readers: Vec<_> = (1..READERS)
        .map(|_| {
            let path = m.dir.join("stuck");
            std::thread::spawn(move || File::open(path).unwrap().read_at(&mut [0; 4096], 8192).unwrap())
        })
        .collect();
    let (done, is_done) = channel();
    let path = m.dir.join("file");
    let other = std::thread::spawn(move || {
        for _ in 0..200 {
            fs::metadata(&path).unwrap();
        }
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(LONG).is_ok(), "the mount hangs");
    other.join().unwrap();
    for _ in &readers {
        m.free.send(()).unwrap();
    }
    for reader in readers {
        assert_eq!(reader.join().unwrap(), 4096);
    }
}

#[test]
fn handlers_that_wait_let_others_read() {
    goes_on_beside_stuck_handlers(true);
}

#[test]
fn handlers_that_do_not_say_that_they_wait_are_found_out() {
    goes_on_beside_stuck_handlers(false);
}

/// Locks a file, waiting for it: an exit status.
const LOCK: &str = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'rb+'), fcntl.LOCK_EX)";

#[test]
fn who_waits_can_be_killed() {
    let Some(m) = mounted(true) else { return };
    let (waiting, waits) = channel();
    *m.shared.waiting.lock().unwrap() = Some(waiting);
    let mut child = std::process::Command::new("python3")
        .args(["-c", LOCK])
        .arg(m.dir.join("locked"))
        .spawn()
        .expect("python3 is there");
    waits.recv_timeout(LONG).expect("it asks for the lock");
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..2000 {
        if m.shared.waits.lock().unwrap().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the interrupt has not come");
}

#[test]
fn two_kinds_of_locks_are_told_apart() {
    let Some(m) = mounted(true) else { return };
    let file = File::options().read(true).write(true).open(m.dir.join("file")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("told apart");
    let locked = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(Errno::AGAIN));
}
