//! Reading inodes remotely: one one-sided read of two lines shows attributes, tail and lock word.

use crate::LocalClient;
use crate::cache::name_cache::DirLog;
use crate::tokens::Look;
use polvo_cluster::RegionVerb;
use polvo_format::{
    Attr, FileKind, FormatError, Generation, Gpa, INLINE_UNITS, INODE_LOCK, INODE_TAIL, INODE_VIEW_SIZE, Ino,
    InodeView, PAGE_UNITS, RegionOffset, Tail,
};
use polvo_proto::{FsError, InodeRef, ask, reply};

/// How often an inode that was read while it changed is read again before its primary is asked.
const TORN_TRIES: u32 = 4;
/// Bytes from the tail to the end of the lock word.
pub(crate) const STATE_SIZE: usize = 16;

/// What one one-sided read of an inode showed.
pub(crate) enum Seen {
    /// It is well and nobody changes it.
    Inode(InodeView),
    /// The same, known by a token.
    ByToken(Current),
    /// It was read while it changed: read it again.
    Torn,
    /// A transaction holds it (or it is damaged): the primary knows more.
    Locked,
    /// The slot holds no inode, or lies nowhere.
    Nothing,
}

/// Tail and lock word of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogState {
    pub(crate) tail: Tail,
    /// A transaction has collected the inode.
    pub(crate) locked: bool,
}

impl LogState {
    pub(crate) fn decode(bytes: &[u8; STATE_SIZE]) -> LogState {
        let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("a word is 8 bytes"));
        LogState {
            tail: Tail(word(0)),
            locked: word(1) != 0,
        }
    }
}

/// Address of an inode; `None` for a number that no inode can have.
pub(crate) fn inode_at(ino: Ino) -> Option<Gpa> {
    Some(Gpa::new(ino.region(), ino.offset()?))
}

/// Address of an inode's tail word.
pub(crate) fn tail_at(ino: Ino) -> Option<Gpa> {
    inode_at(ino)?.checked_add(INODE_TAIL)
}

/// Judges the bytes of an inode.
pub(crate) fn judge(bytes: &[u8; INODE_VIEW_SIZE], ino: Ino) -> Seen {
    match InodeView::decode(bytes, ino) {
        Ok(view) if view.lock == 0 => Seen::Inode(view),
        Err(FormatError::Torn) => Seen::Torn,
        // decided elsewhere, perhaps, and not dispatched yet: its name may be there already
        Err(FormatError::Free) if is_locked(bytes) => Seen::Locked,
        Err(FormatError::Free) => Seen::Nothing,
        Ok(_) | Err(_) => Seen::Locked,
    }
}

fn is_locked(bytes: &[u8; INODE_VIEW_SIZE]) -> bool {
    bytes[INODE_LOCK as usize..][..8] != [0; 8]
}

/// An inode as it is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) attr: Attr,
    pub(crate) log: DirLog,
    /// It is known to have no extended attributes.
    pub(crate) is_bare: bool,
}

impl Current {
    pub(crate) fn new(attr: Attr, tail: Tail) -> Current {
        Current {
            attr,
            log: DirLog { tail, page: None },
            is_bare: false,
        }
    }

    pub(crate) fn inode(&self) -> InodeRef {
        InodeRef {
            ino: self.attr.ino,
            generation: self.attr.generation,
        }
    }
}

impl From<&InodeView> for Current {
    fn from(view: &InodeView) -> Current {
        // the head page is the last one while there is only one
        let in_first_page = view.tail.units() < INLINE_UNITS + PAGE_UNITS;
        let page = (in_first_page && view.log_page != RegionOffset(0)).then_some(view.log_page);
        Current {
            attr: view.attr,
            log: DirLog { tail: view.tail, page },
            is_bare: false,
        }
    }
}

impl LocalClient {
    /// Reads an inode, once.
    pub(crate) async fn see(&self, ino: Ino) -> Result<Seen, FsError> {
        let Some(at) = inode_at(ino) else {
            return Ok(Seen::Nothing);
        };
        let mut bytes = [0; INODE_VIEW_SIZE];
        match self
            .one_sided(ino.region(), &mut [RegionVerb::Read { at, into: &mut bytes }])
            .await
        {
            Ok(()) => Ok(judge(&bytes, ino)),
            Err(FsError::Invalid(_)) => Ok(Seen::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Attributes and log of an inode as they are now: one one-sided read, or an RPC where a transaction holds it.
    /// Another generation than the one asked for is `Stale`.
    pub(crate) async fn current(&self, ino: Ino, generation: Option<Generation>) -> Result<Current, FsError> {
        let tokens = &self.client.tokens;
        let mut look = Look::NONE;
        if let Some(generation) = generation.filter(|_| tokens.is_in_use()) {
            let inode = InodeRef { ino, generation };
            if let Some(current) = tokens.known(inode) {
                return Ok(current);
            }
            look = tokens.look(inode);
        }
        for _ in 0..TORN_TRIES {
            match self.see(ino).await? {
                Seen::Inode(view) => {
                    let current = Current::from(&view);
                    // dead: whether it is still there depends on who holds it. If we do, it is
                    if current.attr.nlink == 0 && self.client.open_table.get(current.inode()).is_none() {
                        break;
                    }
                    return self.accept_seen(current, generation, look);
                }
                Seen::ByToken(current) => return self.accept(current, generation),
                Seen::Nothing => return Err(gone(generation)),
                Seen::Torn => {}
                Seen::Locked => break,
            }
        }
        let reply::Attr { attr, tail } = self.call(ino.region(), ask::GetAttr { ino, generation }).await?;
        self.accept_seen(Current::new(attr, tail), generation, look)
    }

    /// As [`LocalClient::accept`], of what a look has found.
    #[inline]
    pub(crate) fn accept_seen(
        &self,
        current: Current,
        generation: Option<Generation>,
        look: Look,
    ) -> Result<Current, FsError> {
        let accepted = self.accept(current, generation);
        if let Ok(current) = &accepted {
            self.client.tokens.seen(current, look);
        }
        accepted
    }

    /// Takes note of an inode just seen, if it is the one wanted.
    pub(crate) fn accept(&self, current: Current, generation: Option<Generation>) -> Result<Current, FsError> {
        if generation.is_some_and(|wanted| wanted != current.attr.generation) {
            return Err(FsError::Stale);
        }
        self.note(&current);
        Ok(current)
    }

    /// Starts to cache a directory.
    pub(crate) fn note(&self, current: &Current) {
        if current.attr.kind == FileKind::Directory {
            self.client.names.seed(current.inode(), current.log);
        }
    }

    /// Tail and lock word of an inode: one one-sided read.
    pub(crate) async fn log_state(&self, ino: Ino) -> Result<LogState, FsError> {
        let at = tail_at(ino).ok_or(FsError::Stale)?;
        let mut bytes = [0; STATE_SIZE];
        match self
            .one_sided(ino.region(), &mut [RegionVerb::Read { at, into: &mut bytes }])
            .await
        {
            Ok(()) => Ok(LogState::decode(&bytes)),
            // it is gone, and with it the segment that it lay in
            Err(FsError::Invalid(_)) => Err(FsError::Stale),
            Err(error) => Err(error),
        }
    }
}

fn gone(generation: Option<Generation>) -> FsError {
    if generation.is_some() {
        FsError::Stale
    } else {
        FsError::NotFound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_slot_that_a_transaction_has_locked_may_be_an_inode_already() {
        let ino = Ino(7);
        let mut bytes = [0; INODE_VIEW_SIZE];
        assert!(matches!(judge(&bytes, ino), Seen::Nothing));
        bytes[INODE_LOCK as usize] = 1;
        assert!(
            matches!(judge(&bytes, ino), Seen::Locked),
            "its primary knows whether it will be one"
        );
    }
}
