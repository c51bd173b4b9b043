//! Writing: which mechanism moves the bytes, and what all of them share.
//!
//! A write is made in parts of up to 8 MiB, each of which is atomic. For each part, the first of these that fits:
//!
//! | mechanism | for what | how |
//! |---|---|---|
//! | colocated, at once (`placed_by_node`) | up to 4 KiB to a region of the node around us, when nothing is in the way | a call without a future copies the bytes to where they are to stay; mirrors are waited for behind it |
//! | colocated (`placed_by_node`) | anything to such a region | the same, waiting for what is in the way |
//! | eager (`placed_by_node`) | up to 4 KiB, or less where [`Thresholds`] say so | the bytes travel in the request |
//! | client-active (`client_active`) | what is larger, at a node that gives us one-sided access | the data goes by one-sided writes into space that the region has delegated to this session; one log commit right behind it, over the same connection, names it: one round trip |
//! | server-directed (`server_directed`) | what is larger, at other nodes, because we are asked to, or again where another node may have taken a primary's place | the node fetches the bytes from our memory |
//!
//! Where too few free pages are neighbours, parts become smaller, in the end so small that they are eager. No lock is
//! taken: the answer tells what others have committed in between (client arbitration). Every mechanism starts again, up
//! to [`SESSION_TRIES`] times, when the session is lost under it, and makes sure each time that the inode is held
//! ([`LocalClient::keep_to_write`]).

mod client_active;
mod placed_by_node;
mod server_directed;

use crate::io::transfers::{Buffer, Source, Transfers};
use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use crate::open_table::OpenInode;
use crate::tokens::OwnChange;
use polvo_format::{FileKind, PAGE, RegionOffset, Tail};
use polvo_proto::{EAGER_MAX, FILE_SIZE_MAX, FsError, LogCursor, RUNS_MAX, WriteAt};
use std::borrow::Cow;

#[cfg(doc)]
use crate::Thresholds;

/// Bytes of one commit: a write is atomic up to this size.
const COMMIT_BYTES: usize = 8 << 20;
/// Bytes that one commit can hold even where no two free pages are neighbours.
const SCATTERED_BYTES: usize = RUNS_MAX * PAGE;
/// How often a write starts again because the session was lost under it.
const SESSION_TRIES: u32 = 3;

/// What is to be written, or a part of it.
#[derive(Clone, Copy)]
struct NewBytes<'a> {
    at: WriteAt,
    source: Source<'a>,
    /// They are pages of a mapping, which only this client may have.
    of_mapping: bool,
}

impl<'a> NewBytes<'a> {
    fn new(at: WriteAt, bytes: &'a [u8]) -> NewBytes<'a> {
        NewBytes {
            at,
            source: Source::Bytes(bytes),
            of_mapping: false,
        }
    }

    fn len(self) -> usize {
        self.source.len()
    }

    /// What begins `start` bytes on, at most `most` bytes.
    fn part(self, start: usize, most: usize) -> NewBytes<'a> {
        NewBytes {
            at: match self.at {
                WriteAt::Offset(offset) => WriteAt::Offset(offset + start as u64),
                WriteAt::End => WriteAt::End,
            },
            source: self.source.part(start, most),
            ..self
        }
    }

    fn bytes(self) -> Cow<'a, [u8]> {
        self.source.bytes()
    }
}

impl LocalClient {
    /// Writes at an offset. Atomic up to 8 MiB; short only when space runs out.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] when nothing could be written, [`FsError::FileTooLarge`], [`FsError::Stale`].
    pub async fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        let at = WriteAt::Offset(offset);
        let _own = self.changing(file);
        match self.write_colocated_at_once(&file.open_inode, at, bytes) {
            Some(written) => {
                if !written.may_be_told {
                    self.until_write_may_be_told(data_region(&file.open_inode)).await?;
                }
                Ok(bytes.len())
            }
            None => Ok(self.write_in_parts(&file.open_inode, NewBytes::new(at, bytes)).await?.1),
        }
    }

    /// Writes at the end of the file, wherever that is by then; returns where the bytes went, and how many. Up to 8 MiB
    /// stay together whatever others append; short only when space runs out.
    ///
    /// # Errors
    /// As [`LocalClient::write`].
    pub fn append(&self, file: &OpenFile, bytes: &[u8]) -> impl Future<Output = Result<(u64, usize), FsError>> {
        self.write_at(file, WriteAt::End, bytes)
    }

    /// Writes at an offset or at the end of the file; returns where the bytes went, and how many.
    ///
    /// # Errors
    /// As [`LocalClient::write`].
    pub async fn write_at(&self, file: &OpenFile, at: WriteAt, bytes: &[u8]) -> Result<(u64, usize), FsError> {
        let _own = self.changing(file);
        match self.write_colocated_at_once(&file.open_inode, at, bytes) {
            Some(written) => {
                if !written.may_be_told {
                    self.until_write_may_be_told(data_region(&file.open_inode)).await?;
                }
                Ok((written.offset, bytes.len()))
            }
            None => self.write_in_parts(&file.open_inode, NewBytes::new(at, bytes)).await,
        }
    }

    /// Writes back pages of a mapping, for which this client must have the right to map the file still.
    ///
    /// # Errors
    /// As [`LocalClient::write`]; EIO when the right is lost.
    pub async fn write_pages(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        let _own = self.changing(file);
        let new = NewBytes {
            of_mapping: true,
            ..NewBytes::new(WriteAt::Offset(offset), bytes)
        };
        Ok(self.write_in_parts(&file.open_inode, new).await?.1)
    }

    /// Writes from a buffer of the caller's: where the node moves the data, and there is much of it, without a copy on
    /// this side. Otherwise as [`LocalClient::write`]. Panics if the range does not lie within the buffer.
    ///
    /// # Errors
    /// As [`LocalClient::write`].
    pub async fn write_from(
        &self,
        file: &OpenFile,
        offset: u64,
        from: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<usize, FsError> {
        assert!(at <= from.len() && len <= from.len() - at, "outside the buffer");
        let _own = self.changing(file);
        let new = NewBytes {
            at: WriteAt::Offset(offset),
            source: Source::Buffer { buffer: from, at, len },
            of_mapping: false,
        };
        Ok(self.write_in_parts(&file.open_inode, new).await?.1)
    }

    /// A change of a file by this client begins.
    #[inline]
    fn changing(&self, file: &OpenFile) -> OwnChange<'_> {
        file.open_inode.unsynced.changing();
        self.client.tokens.changing(file.inode().ino)
    }

    /// Writes in parts of up to 8 MiB, each by the mechanism that fits it, until all is written or space has run out.
    async fn write_in_parts(&self, open_inode: &OpenInode, new: NewBytes<'_>) -> Result<(u64, usize), FsError> {
        match open_inode.kind {
            FileKind::File | FileKind::Object => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid("not a regular file".into())),
        }
        let mut first = match new.at {
            WriteAt::Offset(offset) => Some(offset),
            WriteAt::End => None,
        };
        let end = first.unwrap_or(0).checked_add(new.len() as u64);
        if end.is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        if new.len() == 0 {
            return Ok((first.unwrap_or(0), 0));
        }
        let region = data_region(open_inode);
        let mut done = 0;
        let mut most = COMMIT_BYTES;
        let (mut short_since, mut moves_since) = (None, None);
        while done < new.len() {
            let transfers = self.transfers(region).await?;
            let whole = match transfers {
                _ if self.colocated(region).is_some() => COMMIT_BYTES,
                Transfers::Client => EAGER_MAX,
                Transfers::Server(sizes) => sizes.eager_write.min(EAGER_MAX),
            };
            let part = new.part(done, most);
            let result = if part.len() <= whole || most == EAGER_MAX {
                self.write_placed_by_node(open_inode, part).await
            } else {
                match transfers {
                    Transfers::Client => self.write_client_active(open_inode, part).await,
                    Transfers::Server(sizes) => self.write_server_directed(open_inode, part, sizes).await,
                }
            };
            match result {
                Ok((offset, written)) => {
                    debug_assert!(written <= part.len(), "no more is written than there is");
                    first.get_or_insert(offset);
                    done += written;
                    if new.at == WriteAt::End && written < COMMIT_BYTES {
                        break; // what somebody else appends now would come in between
                    }
                }
                Err(FsError::HeldBack) if self.links.room_may_come(&mut short_since).await => {}
                // the node around us serves the region no more, or not just now
                Err(FsError::WrongEpoch) if self.links.may_move(&mut moves_since).await => {}
                Err(FsError::NoSpace) if most > SCATTERED_BYTES => most = SCATTERED_BYTES,
                // so many pages are not to be had: what the region has left is handed out piece by piece
                Err(FsError::NoSpace) if most > EAGER_MAX => most = EAGER_MAX,
                Err(FsError::NoSpace | FsError::HeldBack) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((first.unwrap_or(0), done))
    }

    /// Makes sure that an inode is still held, and where pages of a mapping are written that it may be mapped.
    async fn keep_to_write(&self, open_inode: &OpenInode, new: NewBytes<'_>) -> Result<(), FsError> {
        self.keep(open_inode).await?;
        match new.of_mapping && !open_inode.may_map() {
            true => Err(FsError::Io(
                "what was stored to a mapping is not written back: another client may map the file by now".into(),
            )),
            false => Ok(()),
        }
    }

    /// The log as far as the index has followed it, if there is one. What comes after it is in the answer to a write.
    fn known_log(&self, open_inode: &OpenInode) -> LogCursor {
        open_inode.index.read().as_ref().map_or(
            LogCursor {
                tail: Tail(0),
                page: RegionOffset(0),
            },
            |index| index.cursor(),
        )
    }
}
