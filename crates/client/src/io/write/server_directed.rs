//! Server-directed writes: the node fetches the bytes from memory of ours (`io/transfers`).

use super::{NewBytes, SESSION_TRIES};
use crate::io::transfers::{POOLED_BYTES, Source, Thresholds};
use crate::local_client::LocalClient;
use crate::open::data_region;
use crate::open_table::OpenInode;
use polvo_fabric::Access;
use polvo_proto::{FsError, Window, WriteAnswer, ask};

impl LocalClient {
    /// Has the node fetch the bytes: from a pooled buffer, or where they are. Writes as many as fit a transfer.
    pub(super) async fn write_server_directed(
        &self,
        open_inode: &OpenInode,
        new: NewBytes<'_>,
        sizes: Thresholds,
    ) -> Result<(u64, usize), FsError> {
        let new = new.part(0, POOLED_BYTES);
        let (offset, append) = new.at.on_wire();
        let region = data_region(open_inode);
        for _ in 0..SESSION_TRIES {
            self.keep_to_write(open_inode, new).await?;
            let known = self.known_log(open_inode);
            let request = |from: Window| ask::WriteFrom {
                inode: open_inode.inode,
                offset,
                append,
                known: known.tail,
                from,
                len: new.len() as u64,
            };
            let answer = match new.source {
                Source::Buffer { buffer, at, len } if len > sizes.pooled => {
                    let registered = buffer.opened(at, len, Access::READ);
                    self.call_over_connection(region, request(registered.window())).await
                }
                source => {
                    let lent = self.lend(region).await?;
                    lent.fill(source);
                    let answer = self.call_over_connection(region, request(lent.window())).await;
                    lent.over(&answer);
                    answer
                }
            };
            match answer {
                Ok(WriteAnswer::Written(written)) => {
                    let first = written.offset;
                    self.apply_written(open_inode, known, written);
                    return Ok((first, new.len()));
                }
                Ok(WriteAnswer::Before { offset }) => return Ok((offset, new.len())),
                Err(FsError::SessionExpired) => {}
                Err(error) => return Err(error),
            }
        }
        Err(FsError::SessionExpired)
    }
}
