//! Tokens: who has been promised that nothing of an inode changes before he was asked and has answered.
//!
//! A token is a session's, of one inode, by a number that no other token has. It covers what the inode says (attributes and
//! extended attributes, a file's bytes or a directory's names) but for its access time and for where it lies: neither
//! [`Region::accessed`] nor garbage collection asks. What is kept here is who has which, in DRAM; asking, waiting and leases are
//! the node's (`node/tokens`). Whoever has none validates what he knows, as ever.
//!
//! What always holds:
//!
//! - nothing changes an inode of which another session has a token ([`Tokens::check`], where an inode is entered to be changed,
//!   in the critical section that commits);
//! - while somebody asks for an inode's tokens, and for a while after that, nobody gets one;
//! - an inode that a transaction holds, or that has no name, has none given: its holders were asked before.
//!
//! Ideas: leases (Gray and Cheriton 1989), the tokens of AFS and DCE DFS, capabilities of CephFS without their exclusive half.

use crate::hash::NumberMap;
use crate::planted::{Planted, planted};
use crate::{Region, RegionError};
use polvo_format::{Ino, SessionId};
use polvo_proto::{InodeRef, Token};
use std::cell::Cell;

/// After its tokens were asked for, an inode gives none for so long: at first, and at most. It doubles each time, until nobody asks
/// for [`CALM_MS`].
const QUIET_MIN_MS: u64 = 10;
const QUIET_MAX_MS: u64 = 1000;
const CALM_MS: u64 = 1000;
/// Until then, neither does one that somebody else goes on to change, for so long after that was noticed: who would get a token would be
/// asked for it at once.
const QUIET_CHANGED_MS: u64 = 100;
/// No session has that number.
const NOBODY: SessionId = SessionId(0);

/// Which token it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenId {
    /// whose
    pub session: SessionId,
    /// which
    pub number: u64,
}

/// Tokens of one inode, and what becomes of new ones.
#[derive(Default)]
struct Watched {
    /// in order of session, one each
    holders: Vec<TokenId>,
    /// how many changes ask for them just now
    asking: u32,
    quiet_until_ms: u64,
    quiet_ms: u64,
    /// who has changed it since that was last looked at
    changed_by: Cell<ChangedBy>,
}

/// Who has changed an inode.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum ChangedBy {
    #[default]
    Nobody,
    One(SessionId),
    Several,
}

impl Watched {
    fn place_of(&self, session: SessionId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&session, |token| token.session)
    }

    fn is_idle(&self, now_ms: u64) -> bool {
        self.holders.is_empty() && self.asking == 0 && self.is_calm(now_ms)
    }

    /// Its tokens were asked for, and it is not calm yet.
    fn is_contended(&self) -> bool {
        self.quiet_ms > 0
    }

    fn is_changed_by(&self, session: SessionId) {
        self.changed_by.set(match self.changed_by.get() {
            ChangedBy::Nobody => ChangedBy::One(session),
            ChangedBy::One(other) if other == session => return,
            _ => ChangedBy::Several,
        });
    }

    /// Whether somebody else than that session goes on to change it. Begins to look anew.
    fn is_changed_by_others(&self, session: SessionId) -> bool {
        match self.changed_by.get() {
            ChangedBy::Nobody => false,
            ChangedBy::One(by) if by == session => false,
            _ => self.changed_by.take() != ChangedBy::Nobody,
        }
    }

    fn is_calm(&self, now_ms: u64) -> bool {
        self.quiet_until_ms + CALM_MS <= now_ms
    }
}

/// All tokens of a region.
#[derive(Default)]
pub(crate) struct Tokens {
    by_slot: NumberMap<Watched>,
    /// Those of an earlier incarnation may still be believed in: nothing changes.
    closed: bool,
    /// For whom the region was entered.
    session: SessionId,
}

impl Tokens {
    /// Is there anything to check at all?
    #[inline]
    pub fn is_armed(&self) -> bool {
        !self.by_slot.is_empty() || self.closed
    }

    /// May the session for which the region was entered change the inode?
    #[cold]
    pub fn check(&self, ino: Ino) -> Result<(), RegionError> {
        let others = || self.others(ino.slot(), self.session).next().is_some();
        let closed = self.closed && !planted(Planted::ChangedTooEarly);
        let is_forgotten = self.session == NOBODY && planted(Planted::ColocatedForgotten);
        if closed || others() && !is_forgotten {
            return Err(RegionError::Watched(ino));
        }
        if let Some(watched) = self.by_slot.get(&ino.slot()).filter(|watched| watched.is_contended()) {
            watched.is_changed_by(self.session);
        }
        Ok(())
    }

    fn others(&self, slot: u64, session: SessionId) -> impl Iterator<Item = TokenId> {
        let holders = self.by_slot.get(&slot).map_or(&[][..], |watched| &watched.holders);
        let is_other = move |token: &TokenId| token.session != session || planted(Planted::OwnTokenAsked);
        holders.iter().copied().filter(is_other)
    }

    /// The inode of a slot is gone.
    pub fn forget(&mut self, slot: u64) {
        if let Some(watched) = self.by_slot.get_mut(&slot) {
            watched.holders.clear();
        }
    }
}

impl Region {
    /// Until the region is next entered for somebody, changes are that session's, which is not asked for its own tokens.
    #[inline]
    pub fn entered_for(&mut self, session: SessionId) {
        self.tokens.session = session;
    }

    /// Gives a session a token by that number, which comes with what the inode is now. `None`: not now. A token that the session has of
    /// the inode already is no more; its number comes back.
    ///
    /// # Errors
    /// ESTALE; `Locked`.
    pub fn give_token(
        &mut self,
        inode: InodeRef,
        token: TokenId,
        now_ms: u64,
    ) -> Result<Option<(Token, Option<u64>)>, RegionError> {
        if self.tokens.closed {
            return Ok(None);
        }
        let (_, found) = self.inode(inode)?;
        let given = Token {
            number: token.number,
            attr: found.attr,
            tail: found.tail,
            is_bare: found.xattrs.is_empty(),
        };
        if given.attr.nlink == 0 {
            return Ok(None);
        }
        let watched = self.tokens.by_slot.entry(inode.ino.slot()).or_default();
        let is_asked = watched.asking > 0 && !planted(Planted::GivenWhileAsked);
        if is_asked || now_ms < watched.quiet_until_ms {
            return Ok(None);
        }
        if watched.is_changed_by_others(token.session) {
            watched.quiet_until_ms = now_ms + QUIET_CHANGED_MS;
            return Ok(None);
        }
        let before = match watched.place_of(token.session) {
            Ok(at) => Some(std::mem::replace(&mut watched.holders[at], token).number),
            Err(at) => {
                watched.holders.insert(at, token);
                None
            }
        };
        debug_assert!(watched.holders.is_sorted_by_key(|token| token.session));
        debug_assert!(before.is_none_or(|before| before < token.number), "numbers grow");
        Ok(Some((given, before)))
    }

    /// A session has answered, or its lease is over: the token by that number is no more. True when somebody asks for it.
    pub fn end_token(&mut self, ino: Ino, token: TokenId) -> bool {
        let Some(watched) = self.tokens.by_slot.get_mut(&ino.slot()) else {
            return false;
        };
        match watched.place_of(token.session) {
            Ok(at) if watched.holders[at] == token => {
                watched.holders.remove(at);
                debug_assert!(
                    watched.place_of(token.session).is_err(),
                    "a session has one token of an inode"
                );
            }
            // the inode has gone meanwhile, and its tokens with it: whoever asked for them is to look again
            _ => return watched.asking > 0,
        }
        let is_asked = watched.asking > 0;
        if watched.holders.is_empty() && watched.asking == 0 && watched.quiet_ms == 0 {
            self.tokens.by_slot.remove(&ino.slot());
        }
        is_asked
    }

    /// Is there something in the way of a session that would change an inode?
    pub fn is_watched(&self, ino: Ino, session: SessionId) -> bool {
        self.tokens.is_armed() && (self.tokens.closed || self.tokens.others(ino.slot(), session).next().is_some())
    }

    /// Whom a session has to ask before it changes an inode.
    pub fn token_holders(&self, ino: Ino, session: SessionId) -> Vec<TokenId> {
        self.tokens.others(ino.slot(), session).collect()
    }

    /// Somebody asks for an inode's tokens: no new ones until [`Region::end_asking`].
    pub fn begin_asking(&mut self, ino: Ino) {
        self.tokens.by_slot.entry(ino.slot()).or_default().asking += 1;
    }

    /// His change is done or given up.
    pub fn end_asking(&mut self, ino: Ino, now_ms: u64) {
        let watched = self.tokens.by_slot.get_mut(&ino.slot());
        let watched = watched.expect("what is asked for is kept");
        watched.asking = watched.asking.checked_sub(1).expect("who asks is counted");
        if watched.is_calm(now_ms) {
            watched.quiet_ms = 0;
        }
        watched.quiet_ms = (watched.quiet_ms * 2).clamp(QUIET_MIN_MS, QUIET_MAX_MS);
        watched.quiet_until_ms = now_ms + watched.quiet_ms;
    }

    /// Forgets what inodes without tokens were asked for some time ago.
    pub fn sweep_tokens(&mut self, now_ms: u64) {
        self.tokens.by_slot.retain(|_, watched| !watched.is_idle(now_ms));
    }

    /// Tokens of an earlier incarnation may still be believed in: nothing changes, and no new ones are given, until
    /// [`Region::open_to_changes`].
    pub fn close_to_changes(&mut self) {
        debug_assert!(self.tokens.by_slot.is_empty(), "no token was given yet");
        self.tokens.closed = true;
    }

    /// They are over.
    pub fn open_to_changes(&mut self) {
        self.tokens.closed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, ROOT, SESSION, add_name, make, new_inode, region, txn, unlink};
    use polvo_format::FileKind;
    use polvo_proto::{FsError, SetAttr, WriteAt, XattrMode};

    const OTHER: SessionId = SessionId(8);

    fn give(region: &mut Region, inode: InodeRef, session: SessionId, number: u64, now_ms: u64) -> bool {
        let given = region.give_token(inode, TokenId { session, number }, now_ms);
        given.unwrap().is_some()
    }

    fn end(region: &mut Region, inode: InodeRef, session: SessionId, number: u64) -> bool {
        region.end_token(inode.ino, TokenId { session, number })
    }

    fn write(region: &mut Region, inode: InodeRef) -> Result<(), RegionError> {
        region.store(inode, WriteAt::End, b"more", NOW).map(|_| ())
    }

    fn is_watched<T>(result: Result<T, RegionError>) -> bool {
        matches!(result, Err(RegionError::Watched(_)))
    }

    /// Whether a change is refused because somebody watches.
    type IsRefused = Box<dyn Fn(&mut Region) -> bool>;

    /// Each kind of change, by name.
    fn changes(dir: InodeRef, file: InodeRef) -> Vec<(&'static str, IsRefused)> {
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let intents = [new_inode(FileKind::File), add_name(dir, b"new", FileKind::File)];
        vec![
            ("write", Box::new(move |r| is_watched(write(r, file)))),
            ("set_attr", Box::new(move |r| is_watched(r.set_attr(file, &set, NOW)))),
            (
                "set_xattr",
                Box::new(move |r| is_watched(r.set_xattr(file, b"user.a", b"1", XattrMode::Any, NOW))),
            ),
            (
                "remove_xattr",
                Box::new(move |r| is_watched(r.remove_xattr(file, b"user.a", NOW))),
            ),
            (
                "fallocate",
                Box::new(move |r| is_watched(r.fallocate(file, polvo_proto::FallocateMode::PunchHole, 0, 4096, NOW))),
            ),
            ("unlink", Box::new(move |r| is_watched(unlink(r, dir, b"a")))),
            (
                "create",
                Box::new(move |r| is_watched(make(r, dir, b"b", FileKind::File))),
            ),
            (
                "collect",
                Box::new(move |r| is_watched(r.collect(txn(9), &intents, NOW))),
            ),
        ]
    }

    #[test]
    fn nothing_changes_that_somebody_else_watches() {
        let mut region = region(4);
        let dir = make(&mut region, ROOT, b"d", FileKind::Directory).unwrap();
        let file = make(&mut region, dir, b"a", FileKind::File).unwrap();
        region.set_xattr(file, b"user.a", b"1", XattrMode::Any, NOW).unwrap();
        region.entered_for(SESSION);
        assert!(give(&mut region, dir, OTHER, 1, 0) && give(&mut region, file, OTHER, 2, 0));
        let before = (
            region.attr(file.ino, None).unwrap(),
            region.attr(dir.ino, None).unwrap(),
        );
        for (what, is_refused) in changes(dir, file) {
            assert!(is_refused(&mut region), "{what}");
        }
        assert_eq!(
            before,
            (
                region.attr(file.ino, None).unwrap(),
                region.attr(dir.ino, None).unwrap()
            )
        );
        region.accessed(file, before.0.1, true, NOW + 1).unwrap();
        region.entered_for(OTHER);
        write(&mut region, file).unwrap();
        region.entered_for(SESSION);
        assert!(!end(&mut region, file, OTHER, 1), "another number");
        assert!(is_watched(write(&mut region, file)));
        end(&mut region, file, OTHER, 2);
        write(&mut region, file).unwrap();
        assert!(is_watched(make(&mut region, dir, b"b", FileKind::File)));
    }

    #[test]
    fn while_it_is_asked_for_nobody_gets_one_and_for_a_while_after() {
        let mut region = region(4);
        let file = make(&mut region, ROOT, b"a", FileKind::File).unwrap();
        assert!(give(&mut region, file, OTHER, 1, 0));
        region.begin_asking(file.ino);
        assert_eq!(region.token_holders(file.ino, SESSION).len(), 1);
        assert_eq!(region.token_holders(file.ino, OTHER), [], "nobody asks himself");
        assert!(!give(&mut region, file, SESSION, 2, 0));
        assert!(end(&mut region, file, OTHER, 1), "somebody waits for it");
        assert!(!give(&mut region, file, OTHER, 3, 0));
        region.end_asking(file.ino, 100);
        assert!(!give(&mut region, file, OTHER, 4, 109));
        assert!(give(&mut region, file, OTHER, 5, 110));
        region.begin_asking(file.ino);
        end(&mut region, file, OTHER, 5);
        region.end_asking(file.ino, 111);
        assert!(!give(&mut region, file, OTHER, 6, 130), "twice as long");
        assert!(give(&mut region, file, OTHER, 7, 131));
        end(&mut region, file, OTHER, 7);
        region.begin_asking(file.ino);
        region.end_asking(file.ino, 1131);
        assert!(give(&mut region, file, OTHER, 8, 1141), "it was left alone for a while");
        end(&mut region, file, OTHER, 8);
        region.sweep_tokens(2140);
        assert!(region.tokens.is_armed());
        region.sweep_tokens(2141);
        assert!(!region.tokens.is_armed(), "nothing is kept of what nobody has");
    }

    #[test]
    fn while_others_go_on_to_change_it_nobody_gets_one() {
        let mut region = region(4);
        let file = make(&mut region, ROOT, b"a", FileKind::File).unwrap();
        let change = |region: &mut Region, session| {
            region.entered_for(session);
            write(region, file).unwrap();
        };
        assert!(give(&mut region, file, OTHER, 1, 0));
        region.begin_asking(file.ino);
        end(&mut region, file, OTHER, 1);
        change(&mut region, SESSION);
        region.end_asking(file.ino, 0);
        // they write in turn, and each would like a token then
        for now_ms in (4..10_000).step_by(4) {
            let session = if now_ms % 8 == 0 { OTHER } else { SESSION };
            change(&mut region, session);
            assert!(!give(&mut region, file, session, 1 + now_ms, now_ms), "at {now_ms} ms");
        }
        // the last one goes on alone
        change(&mut region, OTHER);
        assert!(!give(&mut region, file, OTHER, 20_000, 10_100));
        change(&mut region, OTHER);
        assert!(
            !give(&mut region, file, SESSION, 20_001, 10_200),
            "it would be asked for"
        );
        change(&mut region, OTHER);
        assert!(give(&mut region, file, OTHER, 20_002, 10_300));
    }

    #[test]
    fn a_session_has_one_and_the_dead_give_none() {
        let mut region = region(4);
        let file = make(&mut region, ROOT, b"a", FileKind::File).unwrap();
        region.open(OTHER, file).unwrap();
        assert!(give(&mut region, file, OTHER, 1, 0));
        let again = region.give_token(
            file,
            TokenId {
                session: OTHER,
                number: 2,
            },
            0,
        );
        assert_eq!(again.unwrap().unwrap().1, Some(1));
        region.entered_for(OTHER);
        unlink(&mut region, ROOT, b"a").unwrap();
        assert!(!give(&mut region, file, OTHER, 3, 0));
        region.release(OTHER, file);
        assert!(!end(&mut region, file, OTHER, 2), "nobody asks");
        region.begin_asking(file.ino);
        assert!(
            end(&mut region, file, OTHER, 2),
            "who asked for it hears that it is no more"
        );
        region.end_asking(file.ino, 0);
        let next = make(&mut region, ROOT, b"b", FileKind::File).unwrap();
        assert_eq!(next.ino, file.ino, "the slot has another file");
        region.entered_for(SESSION);
        write(&mut region, next).unwrap();
        assert!(matches!(
            region.give_token(
                file,
                TokenId {
                    session: OTHER,
                    number: 4
                },
                0
            ),
            Err(RegionError::Fs(FsError::Stale))
        ));
    }

    #[test]
    fn after_a_start_nothing_changes_until_tokens_are_over() {
        let mut region = region(4);
        let file = make(&mut region, ROOT, b"a", FileKind::File).unwrap();
        region.close_to_changes();
        assert!(is_watched(write(&mut region, file)));
        assert!(!give(&mut region, file, OTHER, 1, 0));
        region.attr(file.ino, None).unwrap();
        region.open_to_changes();
        write(&mut region, file).unwrap();
    }
}
