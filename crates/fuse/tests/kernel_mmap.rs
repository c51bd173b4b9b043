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
use fuser::*;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

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

fn attributes(ino: INodeNo) -> FileAttr {
    let is_file = ino == FILE;
    FileAttr {
        ino,
        size: PAGE as u64,
        blocks: 8,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file {
            FileType::RegularFile
        } else {
            FileType::Directory
        },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PAGE as u32,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        config
            .add_capabilities(wanted)
            .map_err(|_| std::io::ErrorKind::Unsupported.into())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.entry(&Duration::ZERO, &attributes(FILE), Generation(1));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = (offset as usize).min(PAGE);
        let end = (start + size as usize).min(PAGE);
        reply.data(&self.bytes.lock().expect("whole")[start..end]);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let start = (offset as usize).min(PAGE);
        let end = (start + data.len()).min(PAGE);
        self.bytes.lock().expect("whole")[start..end].copy_from_slice(&data[..end - start]);
        reply.written(data.len() as u32);
    }
}

#[test]
#[ignore = "fails on every kernel so far: shows what its FUSE does"]
fn the_smallest_file_system_keeps_what_is_written_beside_a_mapping() {
    let home = tempfile::tempdir().expect("a directory for the test");
    let mut config = Config::default();
    config.n_threads = Some(2);
    let filesystem = OneFile {
        bytes: Mutex::new([0; PAGE]),
    };
    let session = spawn_mount(filesystem, home.path(), &config).expect("mounted");
    let said = lost(&home.path().join("file"));
    drop(session);
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
