//! The null file system on `fusedev`.

use super::{FILE, SIZE, ZEROS};
use polvo_fusedev::abi::*;
use polvo_fusedev::{Connection, FileSystem, MountParameters, Reply, Session};
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;
use zerocopy::FromZeros;

struct Null;

fn attributes(ino: INodeNo) -> Attr {
    Attr {
        ino,
        size: SIZE,
        mode: if ino.0 == FILE { 0o100644 } else { 0o040755 },
        nlink: 1,
        blksize: 4096,
        ..Attr::new_zeroed()
    }
}

impl FileSystem for Null {
    fn init(&mut self, connection: &mut Connection) {
        connection.want(init::PARALLEL_DIROPS);
    }

    fn lookup(&self, _req: &Header, _name: &OsStr, reply: Reply<EntryOut>) {
        reply.ok(&EntryOut::new(
            attributes(INodeNo(FILE)),
            1,
            Duration::ZERO,
            Duration::ZERO,
        ));
    }

    fn getattr(&self, req: &Header, reply: Reply<AttrOut>) {
        reply.ok(&AttrOut::new(attributes(req.node), Duration::ZERO));
    }

    fn open(&self, _req: &Header, _asked: &OpenIn, reply: Reply<OpenOut>) {
        let flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        reply.ok(&OpenOut::new(FileHandle(1), flags));
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
}

pub(super) fn mount(dir: &Path) -> io::Result<Session> {
    let parameters = MountParameters {
        fsname: "null-fusedev".to_owned(),
        subtype: "null".to_owned(),
        ..MountParameters::default()
    };
    let most = NonZeroUsize::new(16).expect("not 0");
    Session::mount(Null, &dir.canonicalize()?, &parameters, most)
}
