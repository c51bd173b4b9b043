//! What the kernel does to a page that is written and mapped at the same time: *Limits* of docs/operations.md.
//!
//! A file opened for direct I/O on a connection with `FUSE_DIRECT_IO_ALLOW_MMAP` can be mapped and written at once. A
//! `write` flushes the page and drops it, sends the bytes to the file system and drops the page again. A store through a
//! mapping in between brings the page back as it was before the write, and dirty; the second drop writes all of it, so
//! the bytes of the write are lost. The file system cannot know: it is sent a whole page that somebody has changed.
//!
//! Both tests fail where the kernel does that, so they run when asked for (`--ignored`): one on the smallest file system
//! there is, to show that it is not ours, and one on ours.

mod common;
use common::mounted;
use polvo_fusedev::abi::*;
use polvo_fusedev::{Connection, FileSystem, MountParameters, Reply, Session};
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use zerocopy::FromZeros;

/// One process stores through a mapping, another writes other bytes of the page and reads them back. Says how many of how
/// many writes were lost.
const PROGRAM: &str = r#"
import mmap, os, struct, sys
ROUNDS = 100000
fd = os.open(sys.argv[1], os.O_RDWR)
child = os.fork()
if child == 0:
    mapping = mmap.mmap(fd, 4096)
    n = 0
    while os.getppid() != 1:
        for _ in range(100):
            n += 1
            mapping[2048:2056] = struct.pack("<Q", n)
    os._exit(0)
lost = 0
for n in range(1, ROUNDS + 1):
    os.pwrite(fd, struct.pack("<Q", n), 0)
    if struct.unpack("<Q", os.pread(fd, 8, 0))[0] != n:
        lost += 1
os.kill(child, 9)
os.waitpid(child, 0)
print(f"{lost} of {ROUNDS} acknowledged writes lost")
"#;

fn lost(file: &Path) -> String {
    let said = Command::new("python3").args(["-c", PROGRAM]).arg(file).output();
    let said = said.expect("python3 is there");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

const FILE: INodeNo = INodeNo(2);
const PAGE: usize = 4096;

/// One file of one page.
struct OneFile {
    bytes: Mutex<[u8; PAGE]>,
}

fn attributes(ino: INodeNo) -> Attr {
    Attr {
        ino,
        size: PAGE as u64,
        mode: if ino == FILE { 0o100755 } else { 0o040755 },
        nlink: 1,
        blksize: PAGE as u32,
        ..Attr::new_zeroed()
    }
}

impl FileSystem for OneFile {
    fn init(&mut self, connection: &mut Connection) {
        let missing = connection.want(init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(missing, 0, "this kernel is too old");
    }

    fn lookup(&self, _req: &Header, _name: &OsStr, reply: Reply<EntryOut>) {
        reply.ok(&EntryOut::new(attributes(FILE), 1, Duration::ZERO, Duration::ZERO));
    }

    fn getattr(&self, req: &Header, _: &GetattrIn, reply: Reply<AttrOut>) {
        reply.ok(&AttrOut::new(attributes(req.node), Duration::ZERO));
    }

    fn open(&self, _req: &Header, _asked: &OpenIn, reply: Reply<OpenOut>) {
        reply.ok(&OpenOut::new(FileHandle(1), fopen::DIRECT_IO));
    }

    fn read(&self, _req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        let start = (asked.offset as usize).min(PAGE);
        let end = (start + asked.size as usize).min(PAGE);
        reply.ok(&self.bytes.lock().expect("whole")[start..end]);
    }

    fn write(&self, _req: &Header, asked: &WriteIn, data: &[u8], reply: Reply<WriteOut>) {
        let start = (asked.offset as usize).min(PAGE);
        let end = (start + data.len()).min(PAGE);
        self.bytes.lock().expect("whole")[start..end].copy_from_slice(&data[..end - start]);
        reply.ok(&WriteOut::new(data.len() as u32));
    }
}

#[test]
#[ignore = "fails on every kernel so far: shows what its FUSE does"]
fn the_smallest_file_system_keeps_what_is_written_beside_a_mapping() {
    let home = tempfile::tempdir().expect("a directory for the test");
    let filesystem = OneFile {
        bytes: Mutex::new([0; PAGE]),
    };
    let parameters = MountParameters {
        fsname: "one-file".to_owned(),
        subtype: "one-file".to_owned(),
        ..MountParameters::default()
    };
    let session = Session::mount(filesystem, home.path(), &parameters, NonZeroUsize::MIN).expect("mounted");
    let said = lost(&home.path().join("file"));
    unmount(home.path(), UnmountFlags::DETACH).expect("mounted");
    session.join().expect("a good end");
    assert!(said.starts_with("0 of"), "{said}");
}

#[test]
#[ignore = "fails on every kernel so far, by what its FUSE does"]
fn we_keep_what_is_written_beside_a_mapping() {
    let m = mounted("").expect("root and /dev/fuse");
    let path = m.dir.join("file");
    std::fs::write(&path, [0; PAGE]).expect("written");
    let said = lost(&path);
    assert!(said.starts_with("0 of"), "{said}");
}
