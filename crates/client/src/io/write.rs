//! Writing. Small writes travel in the RPC (eager). Larger ones are client-active: the data goes by one-sided writes
//! into space that the region has delegated to this session, then one log commit names it. Both go over one connection, which
//! keeps their order, so that it is one round trip. No lock is taken: the answer tells what others have committed in between
//! (client arbitration). Inside a node the bytes of either are copied to where they are to stay by a function call.

use crate::io::extent_pool::{Surplus, Taken};
use crate::io::transfers::{Source, Transfers};
use crate::local_client::LocalClient;
use crate::open::{OpenFile, data_region};
use crate::open_table::OpenInode;
use polvo_cluster::{Link, RegionVerb, join_all};
use polvo_format::{FileKind, Gpa, NodeId, PAGE, PAGE_CRC_SIZE, RegionId, RegionOffset, Tail, crcs_of_pages};
use polvo_proto::{
    EAGER_MAX, FILE_SIZE_MAX, FsError, LogCursor, PageRun, RELEASE_MAX, RUNS_MAX, WriteAnswer, WriteRun, ask,
};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Bytes of one commit: a write is atomic up to this size.
const COMMIT_BYTES: usize = 8 << 20;
/// Bytes that one commit can hold even where no two free pages are neighbours.
const SCATTERED_BYTES: usize = RUNS_MAX * PAGE;
/// Bytes of one batch of one-sided writes; larger writes are several at a time.
const BATCH_BYTES: usize = 1 << 20;
/// How often a write starts again because the session was lost under it.
pub(crate) const SESSION_TRIES: u32 = 3;
/// How often space is asked for while the answers bring less than is missing.
const DELEGATE_TRIES: u32 = 16;

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Offset(u64),
    /// At an offset, as part of a mapping's page.
    Page(u64),
    /// Wherever the file ends.
    End,
}

impl At {
    /// As a request says it.
    pub(crate) fn offset(self) -> u64 {
        match self {
            At::Offset(offset) | At::Page(offset) => offset,
            At::End => 0,
        }
    }

    fn plus(self, bytes: usize) -> At {
        match self {
            At::Offset(offset) => At::Offset(offset + bytes as u64),
            At::Page(offset) => At::Page(offset + bytes as u64),
            At::End => At::End,
        }
    }
}

/// Lays bytes out over runs, in order: what goes where, as a commit wants it (offsets from `base` on).
fn lay_out(runs: &[PageRun], bytes: usize, base: u64) -> Vec<WriteRun> {
    let mut laid = Vec::with_capacity(runs.len());
    let mut done = 0;
    for run in runs {
        let len = (run.pages as usize * PAGE).min(bytes - done);
        if len == 0 {
            break;
        }
        laid.push(WriteRun {
            offset: base + done as u64,
            len: len as u64,
            gpa: run.gpa,
        });
        done += len;
    }
    laid
}

impl LocalClient {
    /// Writes at an offset. Atomic up to 8 MiB; short only when space runs out.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] when nothing could be written, [`FsError::FileTooLarge`], [`FsError::Stale`].
    pub async fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        match self.write_at_once(&file.open_inode, Some(offset), bytes) {
            Some(_) => Ok(bytes.len()),
            None => self.write_at(file, offset, Source::Bytes(bytes)).await,
        }
    }

    /// Writes back pages of a mapping, for which this client must have the right to map the file still.
    ///
    /// # Errors
    /// As [`LocalClient::write`]; EIO when the right is lost.
    pub async fn write_pages(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        let written = self.write_all(&file.open_inode, At::Page(offset), Source::Bytes(bytes));
        Ok(written.await?.1)
    }

    /// Makes sure that an inode is still held, and where pages of a mapping are written that it may be mapped.
    pub(crate) async fn keep_to_write(&self, open_inode: &OpenInode, at: At) -> Result<(), FsError> {
        self.keep(open_inode).await?;
        match at {
            At::Page(_) if !open_inode.may_map() => Err(FsError::Io(
                "what was stored to a mapping is not written back: another client may map the file by now".into(),
            )),
            _ => Ok(()),
        }
    }

    pub(crate) async fn write_at(&self, file: &OpenFile, offset: u64, bytes: Source<'_>) -> Result<usize, FsError> {
        if offset
            .checked_add(bytes.len() as u64)
            .is_none_or(|end| end > FILE_SIZE_MAX)
        {
            return Err(FsError::FileTooLarge);
        }
        Ok(self.write_all(&file.open_inode, At::Offset(offset), bytes).await?.1)
    }

    /// Writes at the end of the file, wherever that is by then; returns where the bytes went, and how many. Up to 8 MiB stay
    /// together whatever others append; short only when space runs out.
    ///
    /// # Errors
    /// As [`LocalClient::write`].
    pub async fn append(&self, file: &OpenFile, bytes: &[u8]) -> Result<(u64, usize), FsError> {
        match self.write_at_once(&file.open_inode, None, bytes) {
            Some(first) => Ok((first, bytes.len())),
            None => self.write_all(&file.open_inode, At::End, Source::Bytes(bytes)).await,
        }
    }

    /// Makes what was written durable against power loss, where the medium needs to be asked. `None`: everywhere.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when a node that has to be asked cannot be.
    pub async fn sync(&self, file: Option<&OpenFile>) -> Result<(), FsError> {
        let nodes = match file {
            Some(file) => vec![self.client.primary(data_region(&file.open_inode))?],
            None => self.client.map().nodes.iter().map(|node| node.id).collect(),
        };
        for answer in join_all(nodes.into_iter().map(|node| self.sync_at(node))).await {
            answer?;
        }
        Ok(())
    }

    async fn sync_at(&self, node: NodeId) -> Result<(), FsError> {
        let needed = match self.colocated_in(node) {
            Some(_) => true, // it knows best, and asking costs nothing
            None => self.links.to(node).await?.needs_sync,
        };
        if !needed {
            return Ok(());
        }
        self.call_node(node, ask::Sync).await
    }

    async fn write_all(&self, open_inode: &OpenInode, at: At, bytes: Source<'_>) -> Result<(u64, usize), FsError> {
        match open_inode.kind {
            FileKind::File | FileKind::Object => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid("not a regular file".into())),
        }
        let mut first = match at {
            At::Offset(offset) | At::Page(offset) => Some(offset),
            At::End => None,
        };
        if bytes.len() == 0 {
            return Ok((first.unwrap_or(0), 0));
        }
        let region = data_region(open_inode);
        let transfers = self.transfers(region).await?;
        let whole = match transfers {
            _ if self.colocated(region).is_some() => COMMIT_BYTES,
            Transfers::Client => EAGER_MAX,
            Transfers::Server(sizes) => sizes.eager_write.min(EAGER_MAX),
        };
        let mut done = 0;
        let mut most = COMMIT_BYTES;
        let mut short_since = None;
        while done < bytes.len() {
            let part = bytes.part(done, most);
            let here = at.plus(done);
            let result = if part.len() <= whole || most == EAGER_MAX {
                self.write_whole(open_inode, here, &part.bytes()).await
            } else {
                match transfers {
                    Transfers::Client => self.write_delegated(open_inode, here, &part.bytes()).await,
                    Transfers::Server(sizes) => self.write_directed(open_inode, here, part, sizes).await,
                }
            };
            match result {
                Ok((offset, written)) => {
                    first.get_or_insert(offset);
                    done += written;
                    if at == At::End && written < COMMIT_BYTES {
                        break; // what somebody else appends now would come in between
                    }
                }
                Err(FsError::HeldBack) if self.links.room_may_come(&mut short_since).await => {}
                Err(FsError::NoSpace) if most > SCATTERED_BYTES => most = SCATTERED_BYTES,
                // so many pages are not to be had: what the region has left is handed out piece by piece
                Err(FsError::NoSpace) if most > EAGER_MAX => most = EAGER_MAX,
                Err(FsError::NoSpace | FsError::HeldBack) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((first.unwrap_or(0), done))
    }

    /// The bytes travel in the request, or inside are copied to where they are to stay.
    async fn write_whole(&self, open_inode: &OpenInode, at: At, bytes: &[u8]) -> Result<(u64, usize), FsError> {
        let mut reclaimed = false;
        for _ in 0..SESSION_TRIES {
            self.keep_to_write(open_inode, at).await?;
            let region = data_region(open_inode);
            let written = match self.colocated(region) {
                Some(here) => {
                    let offset = match at {
                        At::Offset(offset) | At::Page(offset) => Some(offset),
                        At::End => None,
                    };
                    self.write_colocated(here, open_inode.inode, offset, bytes).await
                }
                None => self.write_by_request(open_inode, at, bytes).await,
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

    async fn write_by_request(&self, open_inode: &OpenInode, at: At, bytes: &[u8]) -> Result<u64, FsError> {
        let known = self.known_log(open_inode);
        self.client.eager_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let write = ask::Write {
            inode: open_inode.inode,
            offset: at.offset(),
            append: at == At::End,
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

    /// The log as far as the index has followed it, if there is one. What comes after it is in the answer to a write.
    pub(crate) fn known_log(&self, open_inode: &OpenInode) -> LogCursor {
        open_inode.index.read().as_ref().map_or(
            LogCursor {
                tail: Tail(0),
                page: RegionOffset(0),
            },
            |index| index.cursor(),
        )
    }

    /// The bytes go into delegated space, and behind them one commit. Writes as many as fit one commit. Where the connection is
    /// lost before the answer has come, the node says whether it was done, even if it was started anew; if not, the data is
    /// written anew, and waited for.
    async fn write_delegated(&self, open_inode: &OpenInode, at: At, bytes: &[u8]) -> Result<(u64, usize), FsError> {
        let mut unsure = None;
        match (self.try_delegated(open_inode, at, bytes, &mut unsure).await, unsure) {
            (Err(FsError::Stale | FsError::NotFound), Some(unsure)) => Err(unsure),
            (written, _) => written,
        }
    }

    /// As [`LocalClient::write_delegated`]. `unsure`: what to say when the file is gone, since the write may have been done
    /// before, and all that told of it be gone with the file.
    async fn try_delegated(
        &self,
        open_inode: &OpenInode,
        at: At,
        bytes: &[u8],
        unsure: &mut Option<FsError>,
    ) -> Result<(u64, usize), FsError> {
        let region = data_region(open_inode);
        let (mut reclaimed, mut lost) = (false, false);
        for _ in 0..SESSION_TRIES {
            self.keep_to_write(open_inode, at).await?;
            let (_, session) = self.session_at(region).await?;
            let is_over = || Ok::<_, FsError>(self.client.incarnation(self.client.primary(region)?) != session);
            let mut runs = match self.obtain(region, session, bytes.len().div_ceil(PAGE) as u64).await {
                Err(FsError::SessionExpired) => continue,
                runs => runs?,
            };
            if runs.len() > RUNS_MAX {
                self.client
                    .extent_pool
                    .put_back(region, session, runs.split_off(RUNS_MAX));
            }
            let base = match at {
                At::Offset(offset) | At::Page(offset) => offset,
                At::End => 0,
            };
            let laid = lay_out(&runs, bytes.len(), base);
            let len = laid.iter().map(|run| run.len as usize).sum();
            self.learn_segments(region, session);
            let crcs = self.crcs_of(region, &laid, &bytes[..len]).await?;
            let way = match self.put_data(region, session, &laid, &bytes[..len], !lost).await {
                Ok(way) => way,
                Err(FsError::SessionExpired) => continue, // the space was not ours any more
                Err(error) => {
                    self.client.extent_pool.put_back(region, session, runs);
                    return Err(error);
                }
            };
            if is_over()? {
                continue;
            }
            let known = self.known_log(open_inode);
            let commit = ask::Commit {
                inode: open_inode.inode,
                runs: laid,
                crcs,
                append: at == At::End,
                known: known.tail,
                want_pages: self.client.extent_pool.want(region),
            };
            let answer = match way {
                None => self.call(region, commit).await,
                Some(link) => match self.links.call_behind(&link, self.client.cred.clone(), commit).await {
                    Ok(Some(answer)) => Ok(answer),
                    Ok(None) => {
                        self.client.extent_pool.put_back(region, session, runs);
                        lost = true;
                        if is_over()? {
                            let why = "it was started anew, and what was to be written is gone since".into();
                            *unsure = Some(FsError::Unreachable { node: link.node.0, why });
                        }
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match answer {
                Ok(WriteAnswer::Written(mut written)) => {
                    let first = written.offset;
                    let (space, places) = (std::mem::take(&mut written.space), std::mem::take(&mut written.places));
                    self.client.extent_pool.receive(region, session, space, places);
                    self.apply_written(open_inode, known, written);
                    return Ok((first, len));
                }
                // what others have written since is pulled by whoever reads next
                Ok(WriteAnswer::Before { offset }) => return Ok((offset, len)),
                Err(FsError::SessionExpired) => lost = true, // asked as others are, it is attached anew
                // whether it was committed is not known: the pages stay where they are until the session ends
                Err(error @ FsError::Unreachable { .. }) => return Err(error),
                Err(_) if is_over()? => {}
                Err(error) => {
                    self.client.extent_pool.put_back(region, session, runs);
                    let is_short = matches!(error, FsError::NoSpace | FsError::HeldBack);
                    let again = is_short && !std::mem::replace(&mut reclaimed, true);
                    if !(again && self.give_back_at(region, Some(region)).await) {
                        return Err(error);
                    }
                }
            }
        }
        Err(FsError::SessionExpired)
    }

    /// The CRCs of the pages that data is to lie in, where the node keeps them.
    async fn crcs_of(&self, region: RegionId, laid: &[WriteRun], bytes: &[u8]) -> Result<Vec<u8>, FsError> {
        let mut crcs = Vec::new();
        if self.links.to(self.client.primary(region)?).await?.checksums {
            crcs.reserve_exact((bytes.len() / PAGE + 2 * laid.len()) * PAGE_CRC_SIZE);
            let mut rest = bytes;
            for run in laid {
                let (part, later) = rest.split_at(run.len as usize);
                crcs_of_pages(run.gpa.offset().0, part, &mut crcs);
                rest = later;
            }
        }
        Ok(crcs)
    }

    /// Writes the data where it was laid out, several batches at a time. If it may go `ahead` of what is asked of the node next,
    /// returns the connection that it is on its way over, unless it is in place. `SessionExpired` when the space was given in
    /// another session.
    async fn put_data(
        &self,
        region: RegionId,
        session: u64,
        laid: &[WriteRun],
        bytes: &[u8],
        ahead: bool,
    ) -> Result<Option<Rc<Link>>, FsError> {
        let mut ops = Vec::with_capacity(laid.len() + bytes.len() / BATCH_BYTES);
        let mut rest = bytes;
        for run in laid {
            let (mut part, later) = rest.split_at(run.len as usize);
            let mut at = run.gpa;
            rest = later;
            while !part.is_empty() {
                let (now, more) = part.split_at(part.len().min(BATCH_BYTES));
                ops.push((at, now));
                at = Gpa(at.0 + now.len() as u64);
                part = more;
            }
        }
        if bytes.len() <= BATCH_BYTES {
            return self.put_batch(region, session, &ops, ahead).await;
        }
        let mut batches = Vec::new();
        let (mut start, mut size) = (0, 0);
        for (n, (_, part)) in ops.iter().enumerate() {
            if size + part.len() > BATCH_BYTES && n > start {
                batches.push(&ops[start..n]);
                (start, size) = (n, 0);
            }
            size += part.len();
        }
        batches.push(&ops[start..]);
        let put = |ahead| {
            join_all(
                batches
                    .iter()
                    .map(move |batch| self.put_batch(region, session, batch, ahead)),
            )
        };
        let ways = put(ahead).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let same = |a: &Option<Rc<Link>>, b: &Option<Rc<Link>>| match (a, b) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        if ways.windows(2).all(|pair| same(&pair[0], &pair[1])) {
            return Ok(ways.into_iter().next().flatten());
        }
        // a connection was lost in between: what is asked over one of them finds only what went over that one
        for result in put(false).await {
            result?;
        }
        Ok(None)
    }

    async fn put_batch(
        &self,
        region: RegionId,
        session: u64,
        parts: &[(Gpa, &[u8])],
        ahead: bool,
    ) -> Result<Option<Rc<Link>>, FsError> {
        let node = self.client.primary(region)?;
        let mut ops: Vec<RegionVerb<'_>> = parts
            .iter()
            .map(|(at, bytes)| RegionVerb::WriteData { at: *at, bytes })
            .collect();
        let ours = || self.client.incarnation(node) == session;
        match ahead {
            true => self.links.write_ahead(region, &mut ops, ours).await,
            false => self.links.one_sided_while(region, &mut ops, ours).await.map(|()| None),
        }
    }

    /// Takes space of a region, asking for more when there is too little in hand.
    async fn obtain(&self, region: RegionId, session: u64, pages: u64) -> Result<Vec<PageRun>, FsError> {
        let lease = self.client.context.timeouts().lease * 2 / 3;
        let mut reclaimed = false;
        for _ in 0..DELEGATE_TRIES {
            let (missing, want) = match self.client.extent_pool.take(region, session, pages, lease) {
                Taken::Runs(runs) => return Ok(runs),
                Taken::Short { missing, want } => (missing, want),
                Taken::Unconfirmed => {
                    self.renew().await;
                    if self.client.incarnation(self.client.primary(region)?) != session {
                        return Err(FsError::SessionExpired);
                    }
                    continue;
                }
            };
            let wanted = if reclaimed { missing } else { want };
            let pages = u32::try_from(wanted).unwrap_or(u32::MAX);
            match self.call(region, ask::Delegate { region, pages }).await {
                Ok(runs) => self.client.extent_pool.receive(region, session, runs, Vec::new()),
                Err(error @ (FsError::NoSpace | FsError::HeldBack)) if !std::mem::replace(&mut reclaimed, true) => {
                    if !self.give_back_at(region, Some(region)).await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::NoSpace)
    }

    /// Gives back what we have in hand at the node that serves `region`, and what we hold there for no use. What is in
    /// hand of region `keep` stays. False when there was nothing to give.
    async fn give_back_at(&self, region: RegionId, keep: Option<RegionId>) -> bool {
        let map = self.client.map();
        let node = map.primary(region);
        let drained = self
            .client
            .extent_pool
            .drain_where(|r| map.primary(r) == node && Some(r) != keep);
        self.give_back(drained).await
    }

    /// Gives back all that is in hand anywhere. False when there was nothing to give.
    pub(crate) async fn give_back_all(&self) -> bool {
        let drained = self.client.extent_pool.drain_where(|_| true);
        self.give_back(drained).await
    }

    async fn give_back(&self, drained: Vec<Surplus>) -> bool {
        let released = self.release_some().await;
        let returned = !drained.is_empty();
        self.return_space(drained).await;
        released || returned
    }

    /// Gives pages back to the session that they were given to, and to no later one: that may have been given the same pages
    /// anew, and be writing to them.
    pub(crate) async fn return_space(&self, drained: Vec<Surplus>) {
        for Surplus { region, session, runs } in drained {
            for runs in runs.chunks(RELEASE_MAX / 2) {
                if let Err(error) = self.return_runs(region, session, runs).await {
                    // it comes back when the session ends
                    tracing::debug!(%region, %error, "return of space");
                }
            }
        }
    }

    async fn return_runs(&self, region: RegionId, session: u64, runs: &[PageRun]) -> Result<(), FsError> {
        let node = self.client.primary(region)?;
        let link = self.links.to(node).await?;
        // over this connection alone: one made later may belong to another session
        match self.client.incarnation(node) == session {
            true => {
                let request = ask::ReturnSpace { runs: runs.to_vec() };
                let call = self.links.make_call(self.client.cred.clone(), request);
                link.call(&call).await.map(drop)
            }
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_laid_out_over_runs_in_order() {
        let run = |at: u64, pages| PageRun { gpa: Gpa(at), pages };
        let runs = [run(0x10000, 2), run(0x40000, 1), run(0x80000, 5)];
        let laid = lay_out(&runs, 2 * PAGE + PAGE + 10, 7);
        let expect = |offset, len, gpa| WriteRun {
            offset,
            len,
            gpa: Gpa(gpa),
        };
        assert_eq!(
            laid,
            [
                expect(7, 8192, 0x10000),
                expect(7 + 8192, 4096, 0x40000),
                expect(7 + 12288, 10, 0x80000),
            ]
        );
        assert_eq!(lay_out(&runs[..1], 3 * PAGE, 0), [expect(0, 8192, 0x10000)]);
    }
}
