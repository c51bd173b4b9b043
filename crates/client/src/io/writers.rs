//! Which open inodes are open for writing here, and what their primaries know of it.
//!
//! The primary gives one session at a time the right to map a file shared and writable (see `polvo_region`), by the request
//! that opens the file for writing. It ends when the session has the file open for writing no longer. That is told a moment
//! after the last close, with others of its kind; who opens the file again before then has to ask nothing.

use crate::local_client::LocalClient;
use crate::open_table::{OpenInode, OpenTable};
use polvo_format::NodeId;
use polvo_proto::{FsError, InodeRef, MapClaim, RELEASE_MAX, ask};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An inode as far as it is written to here.
#[derive(Default)]
pub(crate) struct Writing {
    /// Open files that write, those that are being opened included. While there are any, no end is told.
    opens: usize,
    /// Requests under way that claim the right back. Nor is it told while there are any of these: it would come before them.
    claims: usize,
    /// Greatest number of a request that has told the primary; 0: it knows by itself, or not at all.
    number: u64,
    /// Number of the last request that claimed the right back. Answers to earlier ones say nothing of it any more.
    claimed: u64,
    /// The primary may know of it.
    told: bool,
    /// The primary has said that it knows.
    noted: bool,
    /// We have the right to map it shared and writable.
    may_map: bool,
    /// In the queue of those whose end is to be told.
    queued: bool,
}

/// What an opener finds.
pub(crate) enum BeginWriting {
    /// The primary knows, and would say nothing new.
    Noted,
    /// The primary is to be told, with that number.
    Tell(u64),
}

impl Writing {
    /// What is known of the primary has been told to it.
    fn check(&self) {
        debug_assert!(self.told || !self.noted, "what the primary knows it was told");
        debug_assert!(
            self.claimed <= self.number,
            "a claim has a number, and the newest counts"
        );
        debug_assert!(self.told || self.claims == 0, "who claims the right tells of it");
    }
}

impl OpenInode {
    /// The inode was made open: its primary knows that we write to it, and we may map it.
    pub(crate) fn made_open(&self) {
        let mut writing = self.writing.lock();
        writing.opens += 1;
        writing.told = true;
        writing.noted = true;
        writing.may_map = true;
        writing.check();
    }

    /// The inode was opened for writing by the request with that number, which was answered.
    pub(crate) fn opened_to_write(&self, number: u64, may_map: bool) {
        let mut writing = self.writing.lock();
        writing.opens += 1;
        writing.number = number.max(writing.number);
        writing.told = true;
        writing.noted = true;
        writing.may_map |= may_map;
        debug_assert!(number > 0, "requests that open for writing are counted from 1");
        writing.check();
    }

    /// It is open for writing.
    pub(crate) fn is_written(&self) -> bool {
        self.writing.lock().opens > 0
    }

    /// We have the right to map the inode shared and writable.
    pub(crate) fn may_map(&self) -> bool {
        self.writing.lock().may_map
    }

    /// The session was lost, and the inode is opened anew: what to ask for, if it is written to.
    fn claim_again(&self, open_table: &OpenTable) -> Option<Claiming<'_>> {
        let mut writing = self.writing.lock();
        if writing.opens == 0 {
            writing.told = writing.claims > 0;
            writing.noted = false;
            writing.may_map = false;
            return None;
        }
        let claim = if writing.may_map { MapClaim::Still } else { MapClaim::No };
        let before = std::mem::replace(&mut writing.number, open_table.next_number());
        assert!(before < writing.number, "numbers grow");
        writing.told = true;
        writing.claims += 1;
        writing.claimed = writing.number;
        writing.check();
        Some(Claiming {
            open_inode: self,
            claim,
            number: writing.number,
        })
    }

    /// The answer to that.
    fn claimed_again(&self, number: u64, may_map: bool) {
        let mut writing = self.writing.lock();
        debug_assert!(
            number <= writing.claimed && writing.claims > 0,
            "the claim is under way"
        );
        if may_map && number < writing.claimed {
            return;
        }
        writing.noted = true;
        if writing.may_map && !may_map {
            // nobody may have mapped it; who has is told by the EIO
            tracing::info!(
                inode = self.inode.ino.0,
                "another client was given the right to map this file while its node did not know us: what has been stored to \
                 mappings of it and is not written back yet is refused with EIO"
            );
        }
        writing.may_map = may_map;
        writing.check();
    }
}

/// A request under way that claims the right back.
struct Claiming<'a> {
    open_inode: &'a OpenInode,
    claim: MapClaim,
    number: u64,
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        let mut writing = self.open_inode.writing.lock();
        assert!(writing.claims > 0, "a claim under way is counted");
        writing.claims -= 1;
    }
}

impl OpenTable {
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Begins to open a held inode for writing. It counts as open from now on: [`OpenTable::closed_writer`] undoes that.
    pub(crate) fn begin_writing(&self, open_inode: &OpenInode, claim: MapClaim) -> BeginWriting {
        let mut writing = open_inode.writing.lock();
        writing.opens += 1;
        if writing.noted && (writing.may_map || claim == MapClaim::No) {
            return BeginWriting::Noted;
        }
        writing.told = true;
        writing.number = self.next_number();
        writing.check();
        BeginWriting::Tell(writing.number)
    }

    /// The primary has answered the request with that number.
    pub(crate) fn told_writing(&self, open_inode: &OpenInode, number: u64, may_map: bool) {
        let mut writing = open_inode.writing.lock();
        debug_assert!(writing.opens > 0, "whoever has asked counts");
        if number < writing.claimed {
            return;
        }
        writing.noted = true;
        // who has it keeps it while it writes, in whichever order the answers come
        writing.may_map |= may_map;
        writing.check();
    }

    /// An open file that writes was closed, or could not be opened.
    pub(crate) fn closed_writer(&self, open_inode: &Arc<OpenInode>) {
        let mut writing = open_inode.writing.lock();
        assert!(writing.opens > 0, "an open file that writes is counted");
        writing.opens -= 1;
        writing.check();
        if writing.opens > 0 || !writing.told || std::mem::replace(&mut writing.queued, true) {
            return;
        }
        drop(writing);
        self.ended_writers.lock().push(open_inode.clone());
        self.work.notify_one();
    }

    /// Takes what is written to no longer, with the numbers that the primaries are to be told.
    fn take_ended_writers(&self) -> Vec<(InodeRef, u64)> {
        let ended = std::mem::take(&mut *self.ended_writers.lock());
        let ended = ended.into_iter().filter_map(|open_inode| {
            let mut writing = open_inode.writing.lock();
            assert!(writing.queued, "an end that is told was queued, once");
            if writing.claims > 0 {
                drop(writing);
                self.ended_writers.lock().push(open_inode); // later
                return None;
            }
            writing.queued = false;
            if writing.opens > 0 || !std::mem::take(&mut writing.told) {
                return None;
            }
            writing.noted = false;
            writing.may_map = false;
            let number = writing.number;
            drop(writing);
            // with a hold that was let go of, everything went
            let is_held = self
                .get(open_inode.inode)
                .is_some_and(|known| Arc::ptr_eq(&known, &open_inode));
            is_held.then_some((open_inode.inode, number))
        });
        ended.collect()
    }
}

impl LocalClient {
    /// Opens an inode anew at its primary, which has forgotten the session. Returns the answer to `Open`, in effect.
    pub(crate) async fn claim_again(
        &self,
        open_inode: &OpenInode,
    ) -> Result<((NodeId, u64), polvo_proto::FileMap), FsError> {
        match open_inode.claim_again(&self.client.open_table) {
            None => self.ask_open(open_inode.inode).await,
            Some(claiming) => {
                let asked = self.ask_open_to_write(open_inode.inode, claiming.claim, claiming.number);
                let (holder, map, may_map) = asked.await?;
                open_inode.claimed_again(claiming.number, may_map);
                Ok((holder, map))
            }
        }
    }

    /// Tells the primary of a held inode that it is written to, if that is news. The caller has counted it.
    pub(crate) async fn tell_writing(
        &self,
        open_inode: &OpenInode,
        claim: MapClaim,
        number: u64,
    ) -> Result<(), FsError> {
        let inode = open_inode.inode;
        let open = ask::OpenToWrite {
            inode,
            claim,
            number,
            want_map: false,
        };
        let opened = self.call(inode.ino.region(), open).await?;
        self.client.open_table.told_writing(open_inode, number, opened.may_map);
        Ok(())
    }

    /// A session was lost: has the nodes hold again what is open for writing, before others are given the right to map it; and where
    /// regions have copies all that is open, since whoever took a node's place keeps files without a name for a while. False when a
    /// node could not be asked.
    pub(crate) async fn keep_open(&self) -> bool {
        let mut all_kept = true;
        let has_copies = |inode: InodeRef| self.links.has_copies(inode.ino.region());
        for open_inode in self.client.open_table.writers_and(has_copies) {
            match self.keep(&open_inode).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => {
                    tracing::debug!(inode = open_inode.inode.ino.0, %error, "not held again yet");
                    all_kept = false;
                }
            }
        }
        all_kept
    }

    /// Tells the nodes which inodes are open for writing no longer.
    pub(crate) async fn end_writers(&self) {
        let mut by_node: BTreeMap<NodeId, Vec<(InodeRef, u64)>> = BTreeMap::new();
        for ended in self.client.open_table.take_ended_writers() {
            if let Ok(node) = self.client.primary(ended.0.ino.region()) {
                by_node.entry(node).or_default().push(ended);
            }
        }
        for (node, ended) in by_node {
            for inodes in ended.chunks(RELEASE_MAX / 2) {
                let inodes = inodes.to_vec();
                if let Err(error) = self.call_node(node, ask::EndWriting { inodes }).await {
                    // it ends with the session
                    tracing::debug!(%node, %error, "end of writing");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::{FileKind, Generation, Ino};

    fn open_inode(open_table: &OpenTable) -> Arc<OpenInode> {
        let inode = InodeRef {
            ino: Ino(7),
            generation: Generation(1),
        };
        open_table.enter(inode, FileKind::File, (NodeId(1), 1), None)
    }

    fn begin(open_table: &OpenTable, open_inode: &OpenInode) -> u64 {
        match open_table.begin_writing(open_inode, MapClaim::IfAlone) {
            BeginWriting::Tell(number) => number,
            BeginWriting::Noted => panic!("the primary knows nothing"),
        }
    }

    #[test]
    fn an_end_is_told_once_and_not_while_the_file_is_open_again() {
        let open_table = OpenTable::new();
        let open_inode = open_inode(&open_table);
        let number = begin(&open_table, &open_inode);
        open_table.told_writing(&open_inode, number, true);
        open_table.closed_writer(&open_inode);
        assert!(matches!(
            open_table.begin_writing(&open_inode, MapClaim::IfAlone),
            BeginWriting::Noted
        ));
        assert!(open_table.take_ended_writers().is_empty());
        assert!(open_inode.may_map());
        open_table.closed_writer(&open_inode);
        assert_eq!(open_table.take_ended_writers(), [(open_inode.inode, number)]);
        assert!(!open_inode.may_map());
        assert!(open_table.take_ended_writers().is_empty());
    }

    #[test]
    fn an_open_that_failed_is_told_too() {
        let open_table = OpenTable::new();
        let open_inode = open_inode(&open_table);
        let number = begin(&open_table, &open_inode);
        open_table.closed_writer(&open_inode);
        assert_eq!(open_table.take_ended_writers(), [(open_inode.inode, number)]);
    }

    #[test]
    fn what_was_answered_before_a_loss_counts_no_more() {
        let open_table = OpenTable::new();
        let open_inode = open_inode(&open_table);
        let before = begin(&open_table, &open_inode);
        let claiming = open_inode.claim_again(&open_table).expect("it is written to");
        assert_eq!(claiming.claim, MapClaim::No, "it had no right yet");
        open_inode.claimed_again(claiming.number, false);
        open_table.told_writing(&open_inode, before, true);
        assert!(!open_inode.may_map());
    }

    #[test]
    fn an_end_waits_for_a_claim_under_way() {
        let open_table = OpenTable::new();
        let open_inode = open_inode(&open_table);
        let number = begin(&open_table, &open_inode);
        open_table.told_writing(&open_inode, number, true);
        let claiming = open_inode.claim_again(&open_table).expect("it is written to");
        assert_eq!(claiming.claim, MapClaim::Still);
        open_table.closed_writer(&open_inode);
        assert!(open_table.take_ended_writers().is_empty());
        let number = claiming.number;
        open_inode.claimed_again(number, true);
        drop(claiming);
        assert_eq!(open_table.take_ended_writers(), [(open_inode.inode, number)]);
    }
}
