//! A client's large file without a name, which grows until a pool is full: the only one that is written in pieces larger
//! than an RPC carries when space runs short, and checked by its own writer.

use crate::pattern;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef, NewFile};
use std::sync::Arc;

/// Bytes of a write.
const PIECE: u64 = 300_000;

/// The file.
pub struct SpaceHog {
    file: Arc<OpenFile>,
    /// Bytes that were acknowledged; `None` when the end is not known for sure any more.
    size: Option<u64>,
    tag: pattern::Tag,
}

/// What growing it showed.
pub enum Grown {
    /// There is room.
    More,
    /// There is none.
    Full,
    /// It is gone, or cannot be reached.
    Lost,
    /// This is wrong.
    Wrong(String),
}

impl SpaceHog {
    /// Makes one, near a directory.
    pub async fn make(client: &LocalClient, dir: InodeRef, tag: pattern::Tag) -> Option<SpaceHog> {
        let new = NewFile {
            kind: FileKind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            umask: 0,
            xattrs: Vec::new(),
        };
        let (_, file) = client.create_unnamed(dir, new).await.ok()?;
        Some(SpaceHog {
            file,
            size: Some(0),
            tag,
        })
    }

    /// Writes a piece more, and reads one back.
    pub async fn grow(&mut self, client: &LocalClient) -> Grown {
        let Some(size) = self.size else { return Grown::Lost };
        self.size = None;
        let bytes: Vec<u8> = (size..size + PIECE).map(|at| pattern::byte(self.tag, at)).collect();
        let written = match size / PIECE % 2 {
            0 => client.write(&self.file, size, &bytes).await,
            _ => match client.append(&self.file, &bytes).await {
                Ok((at, _)) if at != size => {
                    return Grown::Wrong(format!("appended at {at}, the end was at {size}"));
                }
                appended => appended.map(|(_, written)| written),
            },
        };
        let (now, grown) = match written {
            Ok(0) => return Grown::Wrong(format!("a write of {PIECE} bytes wrote none and said nothing")),
            Ok(written) if written < bytes.len() => (size + written as u64, Grown::Full),
            Ok(_) => (size + PIECE, Grown::More),
            Err(FsError::NoSpace) => (size, Grown::Full),
            Err(FsError::Unreachable { .. } | FsError::Stale | FsError::Busy | FsError::SessionExpired) => {
                return Grown::Lost;
            }
            Err(error) => return Grown::Wrong(format!("a write at {size} failed: {error}")),
        };
        let from = now.saturating_sub(PIECE);
        let mut back = vec![0xee; (now - from) as usize + 10];
        match client.read(&self.file, from, &mut back).await {
            Ok(read) if from + read as u64 != now => {
                return Grown::Wrong(format!(
                    "{now} bytes were written, the end is at {}",
                    from + read as u64
                ));
            }
            Ok(read) => {
                let is_so = (from..)
                    .zip(&back[..read])
                    .all(|(at, byte)| *byte == pattern::byte(self.tag, at));
                if !is_so {
                    return Grown::Wrong(format!("not what was written, between {from} and {now}"));
                }
            }
            Err(FsError::Unreachable { .. } | FsError::Stale | FsError::Busy | FsError::SessionExpired) => {
                return Grown::Lost;
            }
            Err(error) => return Grown::Wrong(format!("a read at {from} failed: {error}")),
        }
        self.size = Some(now);
        grown
    }
}
