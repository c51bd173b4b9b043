//! What a file system tells the kernel unasked: that something it keeps is no longer true.
//!
//! Each of these waits for locks of the kernel, which requests hold that are under way: [`Notifier::inval_entry`] for the
//! directory's, [`Notifier::inval_inode`] with a range for pages that a read is filling. So they are called from threads that serve
//! no requests, and hold no lock that a handler takes. [`Notifier::inc_epoch`] waits for nothing.

use crate::abi::{EXPIRE_ONLY, INodeNo, InvalEntryOut, InvalInodeOut, OutHeader, notify_code};
use crate::transport::Transport;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What becomes of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The kernel lets go of it, and unmounts what is mounted below it.
    Drop,
    /// It is asked for at its next use (kernels from 6.2 on, [`HAS_EXPIRE_ONLY`](crate::abi::init::HAS_EXPIRE_ONLY)).
    Expire,
}

/// Sends notifications. May be used from any thread, see the module.
#[derive(Clone)]
pub struct Notifier(pub(crate) Arc<dyn Transport>);

impl Notifier {
    /// Attributes of an inode have changed; with `bytes`, which begin at an offset and are so many (0: up to the end), those, too.
    ///
    /// False: the kernel does not know the inode, or does not yet, where an answer that tells of it is under way.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inval_inode(&self, node: INodeNo, bytes: Option<(u64, u64)>) -> Result<bool, Errno> {
        let (offset, len) = bytes.map_or((-1, 0), |(offset, len)| (offset as i64, len as i64));
        let body = InvalInodeOut { node, offset, len };
        self.send(notify_code::INVAL_INODE, body.as_bytes())
    }

    /// A name of a directory, present or absent, has changed.
    ///
    /// False: the kernel does not know the name, or does not yet.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inval_entry(&self, parent: INodeNo, name: &[u8], entry: Entry) -> Result<bool, Errno> {
        let head = InvalEntryOut {
            parent,
            namelen: name.len() as u32,
            flags: if entry == Entry::Expire { EXPIRE_ONLY } else { 0 },
        };
        let body = [head.as_bytes(), name, b"\0"].concat();
        self.send(notify_code::INVAL_ENTRY, &body)
    }

    /// Each name that the kernel keeps is asked for at its next use.
    ///
    /// # Errors
    /// INVAL: the kernel is older than 6.16.
    pub fn inc_epoch(&self) -> Result<(), Errno> {
        self.send(notify_code::INC_EPOCH, &[]).map(drop)
    }

    fn send(&self, code: i32, body: &[u8]) -> Result<bool, Errno> {
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body.len()) as u32,
            error: code,
            unique: 0,
        };
        match self.0.send(&header, &[IoSlice::new(body)]) {
            Err(Errno::NOENT) => Ok(false),
            sent => sent.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::Recorder;

    #[test]
    fn a_notification_has_a_code_and_no_request() {
        let recorder = Arc::new(Recorder::default());
        let notifier = Notifier(recorder.clone());
        notifier.inval_inode(INodeNo(5), None).expect("sent");
        notifier.inval_entry(INodeNo(5), b"ab", Entry::Expire).expect("sent");
        notifier.inc_epoch().expect("sent");
        let five = 5u64.to_ne_bytes();
        let inode = [five, (-1i64).to_ne_bytes(), [0; 8]].concat();
        let entry = [&five[..], &2u32.to_ne_bytes(), &1u32.to_ne_bytes(), b"ab\0"].concat();
        assert_eq!(recorder.answers(), [(0, 2, inode), (0, 3, entry), (0, 8, vec![])]);
    }
}
