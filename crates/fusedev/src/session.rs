//! A mounted file system, from the kernel's first request to the last thread's end.

use crate::abi::{InitIn, MAJOR, MINOR, OLDEST_MINOR, OutHeader};
use crate::filesystem::{Connection, FileSystem};
use crate::mount::{MountParameters, mount};
use crate::notify::Notifier;
use crate::readers::Readers;
use crate::request::{Operation, Request};
use crate::transport::Transport;
use crate::upcalls::Upcalls;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that every kernel's INIT fits.
const INIT_BUFFER: usize = 8192;

/// A file system that is served on threads of its own until it is unmounted. Dropping this does not unmount.
pub struct Session {
    readers: Arc<Readers>,
    transport: Arc<dyn Transport>,
}

impl Session {
    /// Mounts a file system at a directory, and serves it. `path`: absolute, without symbolic links. `most`: threads that serve the
    /// kernel, at most; they are started when they are needed.
    ///
    /// # Errors
    /// What the system, or the program that mounts for users, says of it; a kernel that is too old.
    pub fn mount(
        mut filesystem: impl FileSystem,
        path: &Path,
        parameters: &MountParameters,
        most: NonZeroUsize,
    ) -> io::Result<Session> {
        let transport: Arc<dyn Transport> = Arc::new(mount(path, parameters)?);
        let upcalls = shake_hands(&mut filesystem, &*transport)?;
        let readers = Readers::start(filesystem, transport.clone(), most, upcalls)?;
        Ok(Session { readers, transport })
    }

    /// Waits until it has been unmounted (by whomever), and all of its threads have ended.
    ///
    /// # Errors
    /// It has ended in another way.
    pub fn join(self) -> io::Result<()> {
        self.readers.join()
    }

    /// By which the kernel is told that something has changed.
    pub fn notifier(&self) -> Notifier {
        Notifier(self.transport.clone())
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Answers INIT, the first request. A kernel with a newer major version asks again with ours.
fn shake_hands(filesystem: &mut impl FileSystem, transport: &dyn Transport) -> io::Result<Arc<Upcalls>> {
    let mut buffer = [0u64; INIT_BUFFER / size_of::<u64>()];
    loop {
        let len = rustix::io::retry_on_intr(|| transport.receive(buffer.as_mut_bytes()))?;
        let decoded = Request::decode(&buffer.as_bytes()[..len]);
        let Ok(Request {
            header,
            operation: Operation::Init(init),
        }) = decoded
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel's first request is not INIT",
            ));
        };
        let is_old = init.major < MAJOR || init.major == MAJOR && init.minor < OLDEST_MINOR;
        if is_old {
            answer(transport, header.unique, Err(Errno::PROTO))?;
            let (major, minor) = (init.major, init.minor);
            let why = format!("this kernel speaks FUSE {major}.{minor}; {MAJOR}.{OLDEST_MINOR} (Linux 4.20) is needed");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut connection = Connection::offered(init);
        if init.major == MAJOR {
            filesystem.init(&mut connection);
        }
        answer(transport, header.unique, Ok((&connection, init)))?;
        if init.major == MAJOR {
            tracing::debug!(kernel = init.minor, own = MINOR, ?connection, "FUSE");
            return Ok(connection.upcalls);
        }
    }
}

fn answer(transport: &dyn Transport, unique: u64, answer: Result<(&Connection, &InitIn), Errno>) -> Result<(), Errno> {
    let out = answer.map(|(connection, init)| connection.answer(init));
    let header = |body: &[u8], error| OutHeader {
        len: (size_of::<OutHeader>() + body.len()) as u32,
        error,
        unique,
    };
    match &out {
        Ok(out) => transport.send(&header(out.as_bytes(), 0), &[IoSlice::new(out.as_bytes())]),
        Err(errno) => transport.send(&header(&[], -errno.raw_os_error()), &[]),
    }
}
