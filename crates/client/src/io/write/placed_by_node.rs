//! Writes of which the node chooses where the bytes go: colocated, it copies them there; eager, they travel in the
//! request.

use super::{NewBytes, SESSION_TRIES};
use crate::colocated::ColocatedNode;
use crate::local_client::LocalClient;
use crate::open::data_region;
use crate::open_table::OpenInode;
use polvo_cluster::WrittenAtOnce;
use polvo_format::RegionId;
use polvo_proto::{EAGER_MAX, FsError, InodeRef, WriteAnswer, WriteAt, ask};
use std::sync::atomic::Ordering;

impl LocalClient {
    /// Writes all of it, colocated or eager. `WrongEpoch`: the node around us serves the region no more, or not just now, and nothing was
    /// done here.
    pub(super) async fn write_placed_by_node(
        &self,
        open_inode: &OpenInode,
        new: NewBytes<'_>,
    ) -> Result<(u64, usize), FsError> {
        let bytes = &new.bytes();
        let mut reclaimed = false;
        for _ in 0..SESSION_TRIES {
            self.keep_to_write(open_inode, new).await?;
            let region = data_region(open_inode);
            let written = match self.colocated(region) {
                Some(here) => self.write_colocated(here, open_inode.inode, new.at, bytes).await,
                // it was in the node around us a moment ago
                None if bytes.len() > EAGER_MAX => Err(FsError::WrongEpoch),
                None => self.write_eager(open_inode, new.at, bytes).await,
            };
            match written {
                Ok(first) => return Ok((first, bytes.len())),
                Err(FsError::SessionExpired) => {}
                Err(error @ (FsError::NoSpace | FsError::HeldBack)) if !std::mem::replace(&mut reclaimed, true) => {
                    if !self.give_back_at(region, None).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::SessionExpired)
    }

    /// As [`LocalClient::write_colocated`], of at most `EAGER_MAX` bytes, and without a future: it is waited for afterwards until that may
    /// be told, if need be ([`Self::until_write_may_be_told`]). `None`: something is in the way (another node serves the region, say), and
    /// nothing was done.
    #[inline]
    pub(super) fn write_colocated_at_once(
        &self,
        open_inode: &OpenInode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Option<WrittenAtOnce> {
        if bytes.is_empty() || bytes.len() > EAGER_MAX || !open_inode.is_kept(self.client.losses()) {
            return None;
        }
        let session = self.nearby.session.take()?;
        let cred = &self.client.cred;
        let written = session.write_at_once(&self.links, cred, open_inode.inode, at, bytes);
        self.nearby.session.set(Some(session));
        written
    }

    /// Waits until a write at once may be told.
    ///
    /// # Errors
    /// It has happened here, and may be found later, or is lost: mirrors did not take it.
    #[cold]
    pub(super) async fn until_write_may_be_told(&self, region: RegionId) -> Result<(), FsError> {
        let here = self
            .client
            .colocated
            .as_ref()
            .expect("it was written at the node around us");
        match here.node.until_write_may_be_told(&self.links, region).await {
            // nobody knows whether the one that serves the region now has it: it is not to be repeated
            Err(FsError::WrongEpoch) => Err(FsError::Unreachable {
                node: here.node.id().0,
                why: format!("region {} was moved from it in the middle of a write", region.0),
            }),
            told => told,
        }
    }

    /// A write to a region of the node around us; returns where the bytes are. No request is made of it, and the bytes
    /// are copied only to where they go. `SessionExpired`: there is a new session, and the write is to be repeated.
    async fn write_colocated(
        &self,
        here: &ColocatedNode,
        inode: InodeRef,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FsError> {
        self.attach_once(here).await?;
        let session = self.session_of(here);
        let written = match &session {
            Ok(session) => {
                let cred = &self.client.cred;
                session.write(&self.links, cred, inode, at, bytes).await
            }
            Err(error) => Err(error.clone()),
        };
        self.after_use(here, session, written).await
    }

    /// The bytes travel in the request. Returns where they are.
    async fn write_eager(&self, open_inode: &OpenInode, at: WriteAt, bytes: &[u8]) -> Result<u64, FsError> {
        let known = self.known_log(open_inode);
        self.client.eager_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (offset, append) = at.on_wire();
        let write = ask::Write {
            inode: open_inode.inode,
            offset,
            append,
            known: known.tail,
            bytes: bytes.to_vec(),
        };
        match self.call(data_region(open_inode), write).await? {
            WriteAnswer::Written(written) => {
                let first = written.offset;
                self.apply_written(open_inode, known, written);
                Ok(first)
            }
            WriteAnswer::Before { offset } => Ok(offset),
        }
    }
}
