//! Client-active writes: the data goes by one-sided writes into delegated space, and one log commit names it.

use super::{NewBytes, SESSION_TRIES};
use crate::io::transfers::Thresholds;
use crate::local_client::LocalClient;
use crate::open::data_region;
use crate::open_table::OpenInode;
use polvo_cluster::{Link, RegionVerb, join_all};
use polvo_format::{Gpa, PAGE, PAGE_CRC_SIZE, RegionId, crcs_of_pages};
use polvo_proto::{FsError, PageRun, RUNS_MAX, WriteAnswer, WriteRun, ask};
use polvo_region::planted::{Planted, planted};
use std::mem;
use std::rc::Rc;

/// Bytes of one batch of one-sided writes; larger writes are several at a time.
const BATCH_BYTES: usize = 1 << 20;

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
    /// The bytes go into delegated space, and behind them one commit. Writes as many as fit one commit. Where the
    /// connection is lost before the answer has come, the node says whether it was done, even if it was started anew;
    /// if not, the data is written anew, and waited for.
    ///
    /// Of a region with copies the pages belong to one pool, and another node may serve the region before they are committed. So the commit
    /// goes over the connection that the data went over, and nowhere else; where it comes to nothing there, whoever serves the region says
    /// whether it was done, and if not all of it is written again, server-directed, which any primary can do.
    pub(super) async fn write_client_active(
        &self,
        open_inode: &OpenInode,
        new: NewBytes<'_>,
    ) -> Result<(u64, usize), FsError> {
        let mut unsure = None;
        match (self.try_client_active(open_inode, new, &mut unsure).await, unsure) {
            (Err(FsError::Stale | FsError::NotFound), Some(unsure)) => Err(unsure),
            (written, _) => written,
        }
    }

    /// As [`LocalClient::write_client_active`]. `unsure`: what to say when the file is gone, since the write may have
    /// been done before, and all that told of it be gone with the file.
    async fn try_client_active(
        &self,
        open_inode: &OpenInode,
        new: NewBytes<'_>,
        unsure: &mut Option<FsError>,
    ) -> Result<(u64, usize), FsError> {
        let bytes = new.bytes();
        let (base, append) = new.at.on_wire();
        let region = data_region(open_inode);
        let (mut reclaimed, mut lost) = (false, false);
        for turn in 0..SESSION_TRIES {
            if turn > 0 && self.links.has_copies(region) {
                return self.write_server_directed(open_inode, new, Thresholds::default()).await;
            }
            self.keep_to_write(open_inode, new).await?;
            let (_, session) = self.session_at(region).await?;
            let is_over = || Ok::<_, FsError>(self.client.incarnation(self.client.primary(region)?, region) != session);
            let runs = match self.obtain_runs(region, session, bytes.len()).await {
                Err(FsError::SessionExpired) => continue,
                runs => runs?,
            };
            let laid = lay_out(&runs, bytes.len(), base);
            let len = laid.iter().map(|run| run.len as usize).sum();
            assert!(len > 0 && len <= bytes.len(), "space was obtained for some of it");
            debug_assert!(laid.len() <= RUNS_MAX, "one commit names all runs");
            self.learn_segments(region, session);
            let crcs = self.crcs_of(region, &laid, &bytes[..len]).await?;
            let way = match self.put_data(region, session, &laid, &bytes[..len], !lost).await {
                Ok(way) => way,
                Err(error) => {
                    self.client.extent_pool.put_back(region, session, runs);
                    match error {
                        FsError::SessionExpired => continue, // the space was not ours any more, or the connection was lost
                        error => return Err(error),
                    }
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
                append,
                known: known.tail,
                want_pages: self.client.extent_pool.want(region, session),
            };
            match self.commit_behind(region, way.as_deref(), commit).await {
                Ok(Some(WriteAnswer::Written(mut written))) => {
                    let (first, space) = (written.offset, mem::take(&mut written.space));
                    let places = mem::take(&mut written.places);
                    self.client.extent_pool.receive(region, session, space, places);
                    self.apply_written(open_inode, known, written);
                    return Ok((first, len));
                }
                // what others have written since is pulled by whoever reads next
                Ok(Some(WriteAnswer::Before { offset })) => return Ok((offset, len)),
                // it was not done: the connection was lost, or the node started anew
                Ok(None) => {
                    self.client.extent_pool.put_back(region, session, runs);
                    lost = true;
                    if is_over()? {
                        *unsure = Some(self.started_anew(region)?);
                    }
                }
                Err(FsError::SessionExpired) => lost = true, // asked as others are, it is attached anew
                // whether it was committed is not known: the pages stay where they are until the session ends
                Err(error @ FsError::Unreachable { .. }) => return Err(error),
                Err(_) if is_over()? => {}
                Err(error) => {
                    self.client.extent_pool.put_back(region, session, runs);
                    let may_reclaim = !mem::replace(&mut reclaimed, true);
                    self.make_room(region, error, may_reclaim).await?;
                }
            }
        }
        Err(FsError::SessionExpired)
    }

    /// What to say of a write to a node that was started anew since, and has nothing of it.
    fn started_anew(&self, region: RegionId) -> Result<FsError, FsError> {
        Ok(FsError::Unreachable {
            node: self.client.primary(region)?.0,
            why: "it was started anew, and what was to be written is gone since".into(),
        })
    }

    /// A commit was refused. What the session has there is given back if that is for want of space, and it `may` help.
    ///
    /// # Errors
    /// What the commit was refused for, if nothing can be done about it.
    async fn make_room(&self, region: RegionId, refused: FsError, may: bool) -> Result<(), FsError> {
        let is_short = matches!(refused, FsError::NoSpace | FsError::HeldBack);
        match is_short && may && self.give_back_at(region, Some(region)).await {
            true => Ok(()),
            false => Err(refused),
        }
    }

    /// Space for so many bytes, as far as one commit can name it.
    async fn obtain_runs(&self, region: RegionId, session: u64, bytes: usize) -> Result<Vec<PageRun>, FsError> {
        let mut runs = self.obtain(region, session, bytes.div_ceil(PAGE) as u64).await?;
        if runs.len() > RUNS_MAX {
            let surplus = runs.split_off(RUNS_MAX);
            self.client.extent_pool.put_back(region, session, surplus);
        }
        Ok(runs)
    }

    /// Sends a commit behind the data that is on its `way` over a connection; none: the data is in place. `None`:
    /// neither is done and never will be.
    async fn commit_behind(
        &self,
        region: RegionId,
        way: Option<&Link>,
        commit: ask::Commit,
    ) -> Result<Option<WriteAnswer>, FsError> {
        match way {
            Some(link) if !planted(Planted::CommittedElsewhere) => {
                let cred = self.client.cred.clone();
                self.links.call_behind(region, link, cred, commit).await
            }
            _ => self.call(region, commit).await.map(Some),
        }
    }

    /// The CRCs of the pages that data is to lie in, where the node keeps them.
    async fn crcs_of(&self, region: RegionId, laid: &[WriteRun], bytes: &[u8]) -> Result<Vec<u8>, FsError> {
        let mut crcs = Vec::new();
        if self.links.to_primary(region).await?.checksums {
            crcs.reserve_exact((bytes.len() / PAGE + 2 * laid.len()) * PAGE_CRC_SIZE);
            let mut rest = bytes;
            for run in laid {
                let (part, later) = rest.split_at(run.len as usize);
                crcs_of_pages(run.gpa.offset().0, part, &mut crcs);
                rest = later;
            }
            debug_assert!(rest.is_empty(), "the runs take all bytes");
            debug_assert!(crcs.len().is_multiple_of(PAGE_CRC_SIZE), "one for each page");
        }
        Ok(crcs)
    }

    /// Writes the data where it was laid out, several batches at a time. If it may go `ahead` of what is asked of the
    /// node next, returns the connection that it is on its way over, unless it is in place. `SessionExpired` when the
    /// space was given in another session.
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
        debug_assert!(rest.is_empty(), "the runs take all bytes");
        debug_assert!(
            batches.iter().map(|batch| batch.len()).sum::<usize>() == ops.len(),
            "every part is in one batch"
        );
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
        if self.links.has_copies(region) {
            return Err(FsError::SessionExpired);
        }
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
        let ours = || self.client.incarnation(node, region) == session;
        match ahead {
            true => self.links.write_ahead(region, &mut ops, ours).await,
            false => self.links.one_sided_while(region, &mut ops, ours).await.map(|()| None),
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
