//! The null file system on `fusedev`: names in a table, files that read as zeros.

use super::{FILE, SIZE, ZEROS};
use polvo_fusedev::abi::*;
use polvo_fusedev::{Connection, Errno, FileSystem, MountParameters, Reply, Session, Upcalls};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// For how long the kernel may keep what it is told: a name, and attributes.
#[derive(Clone, Copy)]
pub struct Lasts {
    name: Duration,
    attributes: Duration,
}

impl Lasts {
    /// Not at all (`cache=none`).
    pub const NOT: Lasts = Lasts {
        name: Duration::ZERO,
        attributes: Duration::ZERO,
    };
    /// As a mount says that has tokens of everything (`cache=strict`).
    pub const AS_BY_TOKENS: Lasts = Lasts {
        name: Duration::from_millis(20),
        attributes: Duration::from_millis(1500),
    };
}

struct Null {
    lasts: Lasts,
    names: Mutex<Names>,
    upcalls: Arc<Upcalls>,
}

/// Directories have odd numbers, files even ones.
struct Names {
    next: u64,
    by_directory: HashMap<INodeNo, HashMap<OsString, INodeNo>>,
}

impl Null {
    fn new(lasts: Lasts) -> Null {
        let first = HashMap::from([(OsString::from("file"), INodeNo(FILE))]);
        Null {
            lasts,
            names: Mutex::new(Names {
                next: FILE + 2,
                by_directory: HashMap::from([(INodeNo::ROOT, first)]),
            }),
            upcalls: Arc::default(),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().expect("nobody panics with it")
    }

    fn make(&self, dir: INodeNo, name: &OsStr, is_directory: bool) -> EntryOut {
        let mut names = self.names();
        names.next += 2;
        let made = INodeNo(names.next + u64::from(is_directory));
        names.by_directory.entry(dir).or_default().insert(name.into(), made);
        // of what is new nobody has a token yet
        EntryOut::new(attributes(made), 1, Duration::ZERO, Duration::ZERO)
    }

    fn remove(&self, dir: INodeNo, name: &OsStr) {
        let mut names = self.names();
        let removed = names.by_directory.get_mut(&dir).and_then(|names| names.remove(name));
        removed.and_then(|removed| names.by_directory.remove(&removed));
    }
}

fn attributes(ino: INodeNo) -> Attr {
    let is_directory = ino.0 % 2 == 1;
    Attr {
        ino,
        size: SIZE,
        mode: if is_directory { 0o040755 } else { 0o100644 },
        nlink: 1,
        blksize: 4096,
        ..Attr::new_zeroed()
    }
}

fn open() -> OpenOut {
    OpenOut::new(FileHandle(1), fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES)
}

impl FileSystem for Null {
    /// What our mounts want, too.
    fn init(&mut self, connection: &mut Connection) {
        connection.want(
            init::ATOMIC_O_TRUNC
                | init::AUTO_INVAL_DATA
                | init::PARALLEL_DIROPS
                | init::EXPORT_SUPPORT
                | init::DONT_MASK
                | init::PASSTHROUGH
                | init::DIRECT_IO_ALLOW_MMAP
                | init::POSIX_LOCKS
                | init::FLOCK_LOCKS,
        );
        connection.max_stack_depth = 1;
        connection.max_background = 64;
        self.upcalls = connection.upcalls.clone();
    }

    fn lookup(&self, req: &Header, name: &OsStr, reply: Reply<EntryOut>) {
        let names = self.names();
        let found = names.by_directory.get(&req.node).and_then(|names| names.get(name));
        match found.copied() {
            Some(found) => reply.ok(&EntryOut::new(
                attributes(found),
                1,
                self.lasts.name,
                self.lasts.attributes,
            )),
            None if self.lasts.name.is_zero() => reply.error(Errno::NOENT),
            None => reply.ok(&EntryOut::absent(self.lasts.name)),
        }
    }

    fn getattr(&self, req: &Header, _asked: &GetattrIn, reply: Reply<AttrOut>) {
        reply.ok(&AttrOut::new(attributes(req.node), self.lasts.attributes));
    }

    fn mkdir(&self, req: &Header, _asked: &MkdirIn, name: &OsStr, reply: Reply<EntryOut>) {
        reply.ok(&self.make(req.node, name, true));
    }

    fn create(&self, req: &Header, _asked: &CreateIn, name: &OsStr, reply: Reply<CreateOut>) {
        let entry = self.make(req.node, name, false);
        reply.ok(&CreateOut { entry, open: open() });
    }

    fn unlink(&self, req: &Header, name: &OsStr, reply: Reply<()>) {
        self.remove(req.node, name);
        reply.ok(&());
    }

    fn rmdir(&self, req: &Header, name: &OsStr, reply: Reply<()>) {
        self.remove(req.node, name);
        reply.ok(&());
    }

    fn open(&self, _req: &Header, _asked: &OpenIn, reply: Reply<OpenOut>) {
        reply.ok(&open());
    }

    fn read(&self, _req: &Header, asked: &ReadIn, reply: Reply<[u8]>) {
        reply.ok(&ZEROS[..(asked.size as usize).min(ZEROS.len())]);
    }

    fn write(&self, _req: &Header, asked: &WriteIn, _data: &[u8], reply: Reply<WriteOut>) {
        reply.ok(&WriteOut::new(asked.size));
    }

    fn flush(&self, _req: &Header, _asked: &FlushIn, reply: Reply<()>) {
        reply.ok(&());
    }

    fn release(&self, _req: &Header, _asked: &ReleaseIn, reply: Reply<()>) {
        reply.ok(&());
    }

    fn opendir(&self, _req: &Header, _asked: &OpenIn, reply: Reply<OpenOut>) {
        reply.ok(&OpenOut::new(FileHandle(1), 0));
    }

    /// Who lists a directory has removed all that was in it.
    fn readdir(&self, _req: &Header, _asked: &ReadIn, reply: Reply<[u8]>) {
        reply.ok(&[]);
    }

    fn releasedir(&self, _req: &Header, _asked: &ReleaseIn, reply: Reply<()>) {
        reply.ok(&());
    }

    /// Its counters, under the name that those of our mounts have.
    fn getxattr(&self, req: &Header, name: &OsStr, room: u32, reply: Reply<[u8]>) {
        if req.node != INodeNo::ROOT || name != "user.polvo.counters" {
            return reply.error(Errno::NODATA);
        }
        let upcalls: Vec<_> = self.upcalls.counts().collect();
        let counts: Vec<_> = upcalls
            .iter()
            .map(|(name, count)| format!("\"{name}\":{count}"))
            .collect();
        let counters = format!("{{\"upcalls\":{{{}}}}}", counts.join(","));
        match counters.len() {
            len if room == 0 => reply.ok(GetxattrOut::new(len as u32).as_bytes()),
            len if len > room as usize => reply.error(Errno::RANGE),
            _ => reply.ok(counters.as_bytes()),
        }
    }
}

pub(super) fn mount(dir: &Path, lasts: Lasts) -> io::Result<Session> {
    let parameters = MountParameters {
        fsname: "null-fusedev".to_owned(),
        subtype: "null".to_owned(),
        ..MountParameters::default()
    };
    let most = NonZeroUsize::new(16).expect("not 0");
    Session::mount(Null::new(lasts), &dir.canonicalize()?, &parameters, most)
}
