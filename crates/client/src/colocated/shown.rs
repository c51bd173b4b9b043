//! Reading a file of a region that the node around us serves without a copy: where its bytes lie in the pool, for whoever hands
//! them to the kernel.

use crate::colocated::ColocatedNode;
use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use polvo_cluster::ShownBytes;
use polvo_pmem::Pmem;
use polvo_proto::{FsError, InodeRef};
use polvo_region::Piece;
use std::io::IoSlice;
use std::sync::Arc;

/// Most bytes that are shown at a time.
const SHOWN_MAX: usize = 1 << 20;
/// What holes are made of.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of a file that stay where and as they are until this is dropped, which is to be soon.
pub struct ShownFile {
    bytes: Box<dyn ShownBytes>,
    pool: Arc<Pmem>,
}

impl ShownFile {
    /// Where they are, in order, in fewer than a thousand parts.
    pub fn parts(&self) -> Vec<IoSlice<'_>> {
        let snapshot = self.bytes.snapshot();
        let mut parts = Vec::with_capacity(snapshot.pieces.len());
        for piece in &snapshot.pieces {
            match piece {
                Piece::Data { at, len } => parts.push(self.pool.for_kernel(*at, *len).expect("asked before")),
                Piece::Inline(bytes) => parts.push(IoSlice::new(bytes)),
                Piece::Zeros(len) => {
                    let whole = len / ZEROS.len() as u64;
                    parts.extend((0..whole).map(|_| IoSlice::new(&ZEROS)));
                    parts.push(IoSlice::new(&ZEROS[..(len % ZEROS.len() as u64) as usize]));
                }
            }
        }
        debug_assert!(parts.len() < 1000, "{} parts", parts.len());
        parts
    }
}

impl LocalClient {
    /// Shows at most 1 MiB at an offset, all that [`LocalClient::read`] would give for as many bytes; `None`: they are not to be had
    /// so, but by that one.
    ///
    /// # Errors
    /// Those of [`LocalClient::read`].
    pub async fn show(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Option<ShownFile>, FsError> {
        let open_inode = &*file.open_inode;
        let Some(here) = self.colocated(data_region(open_inode)) else {
            return Ok(None);
        };
        let is_mapped = here.pool.for_kernel(0, 0).is_some();
        if !is_mapped || self.client.verifies() || len > SHOWN_MAX {
            return Ok(None);
        }
        self.check_file(open_inode).await?;
        match self.try_show(here, open_inode.inode, offset, len as u64).await {
            Ok(bytes) if bytes.snapshot().more => Ok(None),
            Ok(bytes) => Ok(Some(ShownFile {
                bytes,
                pool: here.pool.clone(),
            })),
            // there is a new one, or another node serves it now
            Err(FsError::SessionExpired | FsError::WrongEpoch) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn try_show(
        &self,
        here: &ColocatedNode,
        inode: InodeRef,
        offset: u64,
        len: u64,
    ) -> Result<Box<dyn ShownBytes>, FsError> {
        self.attach_once(here).await?;
        let session = self.session_of(here);
        let shown = match &session {
            Ok(session) => session.show(&self.links, &self.client.cred, inode, offset, len).await,
            Err(error) => Err(error.clone()),
        };
        self.after_use(here, session, shown).await
    }
}
