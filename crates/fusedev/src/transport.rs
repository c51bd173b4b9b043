//! The way to the kernel, and the one there is so far: `/dev/fuse`.
//!
//! A [`Transport`] brings one request at a time and takes answers, from any thread. A request is answered by way of the transport
//! that it came by. FUSE over io_uring would be another one: its ring entries are what [`Transport::receive`] waits for, and what
//! [`Transport::send`] commits.

use crate::abi::OutHeader;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, opcode};
use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// Where the kernel is met.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// Most parts of a body: the system takes 1024 in one call, and the header is one.
pub const BODY_PARTS: usize = 1023;

/// A way to the kernel. All methods may be called from any thread.
pub trait Transport: Send + Sync {
    /// Waits for a request and puts it into `buffer`; its length in bytes.
    ///
    /// # Errors
    /// NODEV and CONNABORTED: the file system was unmounted. Others in passing, or for good.
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Gives an answer, or a notification. The body is in at most [`BODY_PARTS`] parts.
    ///
    /// # Errors
    /// NOENT: nobody waits for it any more, or what it is about is not known to the kernel.
    fn send(&self, header: &OutHeader, body: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// The device file of the connection.
    fn device(&self) -> BorrowedFd<'_>;
}

/// `/dev/fuse`: one `read` a request, one `writev` an answer.
pub(crate) struct Device(OwnedFd);

impl Device {
    /// Opens it; it is of no use before it is mounted.
    pub fn open() -> io::Result<Device> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Device(rustix::fs::open(Path::new(DEVICE), flags, Mode::empty())?))
    }

    /// A device file that is mounted already.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Device> {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Device(fd))
    }

    /// Another way to the same file system, with a queue of its own for what is being worked on.
    pub fn another(of: BorrowedFd<'_>) -> io::Result<Device> {
        const CLONE: Opcode = opcode::read::<u32>(IOCTL_GROUP, 0);
        let another = Device::open()?;
        // SAFETY: FUSE_DEV_IOC_CLONE reads a u32, the number of a file, and changes nothing of this process's memory.
        unsafe { rustix::ioctl::ioctl(&another.0, Setter::<CLONE, u32>::new(of.as_raw_fd() as u32)) }?;
        Ok(another)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Transport for Device {
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }

    fn send(&self, header: &OutHeader, body: &[IoSlice<'_>]) -> Result<(), Errno> {
        assert_eq!(
            header.len as usize,
            size_of::<OutHeader>() + body.iter().map(|part| part.len()).sum::<usize>(),
            "the header says how long the answer is"
        );
        assert!(
            header.error <= 0 || header.unique == 0,
            "{} is an error of no request",
            header.error
        );
        assert!(header.error >= 0 || body.is_empty(), "an error has no body");
        // One write is one answer: the kernel takes all of it, or none.
        let mut few = [IoSlice::new(header.as_bytes()); 4];
        let sent = match few.get_mut(1..=body.len()) {
            Some(after) => {
                after.copy_from_slice(body);
                rustix::io::writev(&self.0, &few[..=body.len()])
            }
            None => rustix::io::writev(&self.0, &[&few[..1], body].concat()),
        };
        sent.map(drop)
    }

    fn device(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Of FUSE's own system calls on the device.
const IOCTL_GROUP: u8 = 229;

/// An open file that the kernel knows for passthrough. Known until it is dropped.
pub struct BackingId {
    transport: Weak<dyn Transport>,
    id: i32,
}

impl BackingId {
    pub(crate) fn new(transport: &Arc<dyn Transport>, file: BorrowedFd<'_>) -> io::Result<BackingId> {
        let map = BackingMap {
            fd: file.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: `Register` is FUSE_DEV_IOC_BACKING_OPEN, with the struct that it reads.
        let id = unsafe { rustix::ioctl::ioctl(transport.device(), Register(map)) }?;
        Ok(BackingId {
            transport: Arc::downgrade(transport),
            id,
        })
    }

    /// For [`OpenOut::backing_id`](crate::abi::OpenOut::backing_id).
    pub fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        const CLOSE: Opcode = opcode::write::<u32>(IOCTL_GROUP, 2);
        let Some(transport) = self.transport.upgrade() else {
            return;
        };
        // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads a u32 and changes nothing of this process's memory.
        let closed = unsafe { rustix::ioctl::ioctl(transport.device(), Setter::<CLOSE, u32>::new(self.id as u32)) };
        if let Err(errno) = closed {
            tracing::debug!(%errno, "the kernel has forgotten a backing file before");
        }
    }
}

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// FUSE_DEV_IOC_BACKING_OPEN: what it returns is the number.
struct Register(BackingMap);

// SAFETY: the opcode's argument is a pointer to the struct, which lives as long as the call, and is only read.
unsafe impl Ioctl for Register {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<BackingMap>(IOCTL_GROUP, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Mutex;

    /// A transport that brings nothing and remembers what was sent: unique, error, body.
    #[derive(Default)]
    pub(crate) struct Recorder(Mutex<Vec<(u64, i32, Vec<u8>)>>);

    impl Recorder {
        pub(crate) fn answers(&self) -> Vec<(u64, i32, Vec<u8>)> {
            std::mem::take(&mut *self.0.lock().expect("no panic"))
        }
    }

    impl Transport for Recorder {
        fn receive(&self, _: &mut [u8]) -> Result<usize, Errno> {
            Err(Errno::NODEV)
        }

        fn send(&self, header: &OutHeader, body: &[IoSlice<'_>]) -> Result<(), Errno> {
            let body: Vec<u8> = body.iter().flat_map(|part| part.to_vec()).collect();
            assert_eq!(header.len as usize, size_of::<OutHeader>() + body.len());
            let mut sent = self.0.lock().expect("no panic");
            sent.push((header.unique, header.error, body));
            Ok(())
        }

        fn device(&self) -> BorrowedFd<'_> {
            unreachable!("nothing is opened for passthrough here")
        }
    }
}
