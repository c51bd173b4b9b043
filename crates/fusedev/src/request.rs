//! A request of the kernel, decoded where it lies.
//!
//! ```text
//!   Header | struct of the opcode | name NUL, name NUL | bytes      what is there depends on the opcode
//! ```
//!
//! Nothing is copied and nothing allocated: names and bytes are slices of the buffer that was read into. Any bytes are either a
//! request or an error: lengths are compared with what is there, and names end where their NUL is. An opcode that is not known
//! here is a request too, [`Operation::Unknown`], since it has to be answered.

use crate::abi::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// One request.
#[derive(Debug)]
pub struct Request<'b> {
    /// Who asks, and about which inode.
    pub header: &'b Header,
    /// What for.
    pub operation: Operation<'b>,
}

/// What a request asks for. Where nothing else is said, it is about the inode of the header.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Operation<'b> {
    Init(&'b InitIn),
    Destroy,
    Lookup(&'b OsStr),
    /// That many lookups of the inode are forgotten.
    Forget(u64),
    BatchForget(&'b [ForgetOne]),
    Interrupt(&'b InterruptIn),
    GetAttr(&'b GetattrIn),
    SetAttr(&'b SetattrIn),
    Statx(&'b StatxIn),
    ReadLink,
    /// Name and target.
    Symlink(&'b OsStr, &'b [u8]),
    Mknod(&'b MknodIn, &'b OsStr),
    Mkdir(&'b MkdirIn, &'b OsStr),
    Unlink(&'b OsStr),
    Rmdir(&'b OsStr),
    /// From the header's directory to that one; flags of `renameat2`.
    Rename {
        name: &'b OsStr,
        new_parent: INodeNo,
        new_name: &'b OsStr,
        flags: u32,
    },
    /// A new name in the header's directory.
    Link(INodeNo, &'b OsStr),
    Open(&'b OpenIn),
    Create(&'b CreateIn, &'b OsStr),
    /// A file without a name, in the header's directory.
    TmpFile(&'b CreateIn),
    Read(&'b ReadIn),
    Write(&'b WriteIn, &'b [u8]),
    Statfs,
    Release(&'b ReleaseIn),
    Fsync(&'b FsyncIn),
    Flush(&'b FlushIn),
    /// Name, value, flags of `setxattr`.
    SetXattr(&'b OsStr, &'b [u8], i32),
    /// Name, and room for the value.
    GetXattr(&'b OsStr, u32),
    /// Room for the names.
    ListXattr(u32),
    RemoveXattr(&'b OsStr),
    OpenDir(&'b OpenIn),
    ReadDir(&'b ReadIn),
    ReadDirPlus(&'b ReadIn),
    ReleaseDir(&'b ReleaseIn),
    FsyncDir(&'b FsyncIn),
    GetLock(&'b LkIn),
    /// Without and with waiting.
    SetLock(&'b LkIn, bool),
    Fallocate(&'b FallocateIn),
    Lseek(&'b LseekIn),
    /// How many were copied is told as [`CopyFileRangeOut`], or else as [`WriteOut`].
    CopyFileRange(&'b CopyFileRangeIn, bool),
    /// The kernel may ask this, and nobody here has an answer to it: ENOTTY.
    Ioctl,
    Unknown,
}

/// Bytes that are no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// There is no whole header, or its length is not that of the request: nobody can be answered.
    Header,
    /// The header is whole; what follows it is not what its opcode has.
    Operation {
        /// of the request
        unique: u64,
        /// of the request
        opcode: u32,
    },
}

impl<'b> Request<'b> {
    /// Decodes what one read has brought. `bytes` begins at a multiple of 8 bytes.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn decode(bytes: &'b [u8]) -> Result<Request<'b>, Malformed> {
        let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| Malformed::Header)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Header);
        }
        let operation = decode(header.opcode, Arguments(rest)).ok_or(Malformed::Operation {
            unique: header.unique,
            opcode: header.opcode,
        })?;
        Ok(Request { header, operation })
    }
}

/// What follows the header and has not been decoded yet.
struct Arguments<'b>(&'b [u8]);

impl<'b> Arguments<'b> {
    fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Option<&'b T> {
        let (taken, rest) = T::ref_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(taken)
    }

    /// Bytes up to a NUL, which is there.
    fn string(&mut self) -> Option<&'b [u8]> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(string)
    }

    /// A name: not empty, no slash in it.
    fn name(&mut self) -> Option<&'b OsStr> {
        let name = self.string()?;
        (!name.is_empty() && !name.contains(&b'/')).then(|| OsStr::from_bytes(name))
    }

    /// The name of an extended attribute: anything but empty.
    fn attribute(&mut self) -> Option<&'b OsStr> {
        let name = self.string()?;
        (!name.is_empty()).then(|| OsStr::from_bytes(name))
    }

    fn bytes(&mut self, len: u32) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

fn decode<'b>(opcode: u32, mut rest: Arguments<'b>) -> Option<Operation<'b>> {
    Some(match opcode {
        opcode::INIT => Operation::Init(rest.take()?),
        opcode::DESTROY => Operation::Destroy,
        opcode::LOOKUP => Operation::Lookup(rest.name()?),
        opcode::FORGET => Operation::Forget(rest.take::<ForgetIn>()?.lookups),
        opcode::BATCH_FORGET => {
            let count = rest.take::<BatchForgetIn>()?.count as usize;
            let (forgotten, _) = <[ForgetOne]>::ref_from_prefix_with_elems(rest.0, count).ok()?;
            Operation::BatchForget(forgotten)
        }
        opcode::INTERRUPT => Operation::Interrupt(rest.take()?),
        opcode::GETATTR => Operation::GetAttr(rest.take()?),
        opcode::SETATTR => Operation::SetAttr(rest.take()?),
        opcode::STATX => Operation::Statx(rest.take()?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink(rest.name()?, rest.string()?),
        opcode::MKNOD => Operation::Mknod(rest.take()?, rest.name()?),
        opcode::MKDIR => Operation::Mkdir(rest.take()?, rest.name()?),
        opcode::UNLINK => Operation::Unlink(rest.name()?),
        opcode::RMDIR => Operation::Rmdir(rest.name()?),
        opcode::RENAME | opcode::RENAME2 => {
            let (new_parent, flags) = match opcode {
                opcode::RENAME => (rest.take::<RenameIn>()?.new_parent, 0),
                _ => rest.take::<Rename2In>().map(|given| (given.new_parent, given.flags))?,
            };
            Operation::Rename {
                name: rest.name()?,
                new_parent,
                new_name: rest.name()?,
                flags,
            }
        }
        opcode::LINK => Operation::Link(rest.take::<LinkIn>()?.node, rest.name()?),
        opcode::OPEN => Operation::Open(rest.take()?),
        opcode::CREATE => Operation::Create(rest.take()?, rest.name()?),
        opcode::TMPFILE => Operation::TmpFile(rest.take()?),
        opcode::READ => Operation::Read(rest.take()?),
        opcode::WRITE => {
            let given: &WriteIn = rest.take()?;
            Operation::Write(given, rest.bytes(given.size)?)
        }
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => Operation::Release(rest.take()?),
        opcode::FSYNC => Operation::Fsync(rest.take()?),
        opcode::FLUSH => Operation::Flush(rest.take()?),
        opcode::SETXATTR => {
            let given: &SetxattrIn = rest.take()?;
            let name = rest.attribute()?;
            Operation::SetXattr(name, rest.bytes(given.size)?, given.flags)
        }
        opcode::GETXATTR => {
            let room = rest.take::<GetxattrIn>()?.size;
            Operation::GetXattr(rest.attribute()?, room)
        }
        opcode::LISTXATTR => Operation::ListXattr(rest.take::<GetxattrIn>()?.size),
        opcode::REMOVEXATTR => Operation::RemoveXattr(rest.attribute()?),
        opcode::OPENDIR => Operation::OpenDir(rest.take()?),
        opcode::READDIR => Operation::ReadDir(rest.take()?),
        opcode::READDIRPLUS => Operation::ReadDirPlus(rest.take()?),
        opcode::RELEASEDIR => Operation::ReleaseDir(rest.take()?),
        opcode::FSYNCDIR => Operation::FsyncDir(rest.take()?),
        opcode::GETLK => Operation::GetLock(rest.take()?),
        opcode::SETLK => Operation::SetLock(rest.take()?, false),
        opcode::SETLKW => Operation::SetLock(rest.take()?, true),
        opcode::FALLOCATE => Operation::Fallocate(rest.take()?),
        opcode::LSEEK => Operation::Lseek(rest.take()?),
        opcode::COPY_FILE_RANGE => Operation::CopyFileRange(rest.take()?, false),
        opcode::COPY_FILE_RANGE_64 => Operation::CopyFileRange(rest.take()?, true),
        opcode::IOCTL => Operation::Ioctl,
        _ => Operation::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    /// A request whose header says so much, at an address that is a multiple of 8.
    fn request(opcode: u32, arguments: &[&[u8]]) -> (Vec<u64>, usize) {
        let arguments = arguments.concat();
        let header = Header {
            len: (size_of::<Header>() + arguments.len()) as u32,
            opcode,
            unique: 8,
            node: INodeNo(5),
            uid: 1,
            gid: 2,
            pid: 3,
            _total_extlen: 0,
            _padding: 0,
        };
        let bytes = [header.as_bytes(), &arguments].concat();
        let mut buffer = vec![0u64; bytes.len().div_ceil(8)];
        buffer.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        (buffer, bytes.len())
    }

    fn with<T>(opcode: u32, arguments: &[&[u8]], look: impl FnOnce(Result<Request<'_>, Malformed>) -> T) -> T {
        let (buffer, len) = request(opcode, arguments);
        look(Request::decode(&buffer.as_bytes()[..len]))
    }

    fn is_malformed(opcode: u32, arguments: &[&[u8]]) -> bool {
        let expected = Malformed::Operation { unique: 8, opcode };
        with(opcode, arguments, |decoded| decoded.is_err_and(|why| why == expected))
    }

    #[test]
    fn names_end_at_their_nul() {
        with(opcode::LOOKUP, &[b"name\0"], |decoded| {
            let decoded = decoded.expect("whole");
            assert_eq!((decoded.header.node, decoded.header.pid), (INodeNo(5), 3));
            assert!(matches!(decoded.operation, Operation::Lookup(name) if name == "name"));
        });
        with(opcode::SYMLINK, &[b"a\0", b"to/b\0"], |decoded| {
            let operation = decoded.expect("whole").operation;
            assert!(matches!(operation, Operation::Symlink(name, b"to/b") if name == "a"));
        });
        with(
            opcode::RENAME2,
            &[&7u64.to_ne_bytes(), &1u64.to_ne_bytes(), b"a\0b\0"],
            |decoded| {
                let Operation::Rename {
                    name,
                    new_parent,
                    new_name,
                    flags,
                } = decoded.expect("whole").operation
                else {
                    panic!("a rename");
                };
                assert_eq!((name.as_bytes(), new_name.as_bytes()), (&b"a"[..], &b"b"[..]));
                assert_eq!((new_parent, flags), (INodeNo(7), 1));
            },
        );
        for broken in [&b"name"[..], b"", b"\0", b"a/b\0"] {
            assert!(is_malformed(opcode::LOOKUP, &[broken]), "{broken:?}");
        }
        assert!(is_malformed(opcode::RENAME, &[&7u64.to_ne_bytes(), b"a\0b"]));
    }

    #[test]
    fn lengths_are_compared_with_what_is_there() {
        let write = |size: u32| {
            let mut given = [0u8; 40];
            given[16..20].copy_from_slice(&size.to_ne_bytes());
            given
        };
        with(opcode::WRITE, &[&write(3), b"abc"], |decoded| {
            assert!(matches!(decoded.expect("whole").operation, Operation::Write(_, b"abc")));
        });
        assert!(is_malformed(opcode::WRITE, &[&write(4), b"abc"]));
        assert!(is_malformed(opcode::WRITE, &[&write(u32::MAX), b"abc"]));
        let forget = |count: u32| u64::from(count).to_ne_bytes();
        with(opcode::BATCH_FORGET, &[&forget(2), &[1; 32]], |decoded| {
            assert!(matches!(decoded.expect("whole").operation, Operation::BatchForget(all) if all.len() == 2));
        });
        assert!(is_malformed(opcode::BATCH_FORGET, &[&forget(3), &[1; 32]]));
        assert!(is_malformed(opcode::BATCH_FORGET, &[&forget(u32::MAX), &[1; 32]]));
        let value = [5u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
        assert!(is_malformed(opcode::SETXATTR, &[&value, b"user.a\0", b"four"]));
        assert!(is_malformed(opcode::GETATTR, &[&[0; 15]]));
    }

    #[test]
    fn a_header_says_how_long_the_request_is() {
        let (buffer, len) = request(opcode::STATFS, &[]);
        assert!(Request::decode(&buffer.as_bytes()[..len]).is_ok());
        assert_eq!(
            Request::decode(&buffer.as_bytes()[..len - 1]).err(),
            Some(Malformed::Header)
        );
        let (buffer, len) = request(opcode::STATFS, &[b"12345678"]);
        assert_eq!(
            Request::decode(&buffer.as_bytes()[..len - 8]).err(),
            Some(Malformed::Header)
        );
        assert_eq!(Request::decode(&[]).err(), Some(Malformed::Header));
    }

    #[test]
    fn what_is_not_known_is_still_a_request() {
        for opcode in [0, 7, 40, 54, 4096, u32::MAX] {
            with(opcode, &[b"anything"], |decoded| {
                assert!(matches!(decoded.expect("whole").operation, Operation::Unknown));
            });
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(opcode in 0u32..60, arguments in prop::collection::vec(any::<u8>(), 0..200)) {
            with(opcode, &[&arguments], |decoded| if let Err(why) = decoded {
                assert_eq!(why, Malformed::Operation { unique: 8, opcode });
            });
        }
    }
}
