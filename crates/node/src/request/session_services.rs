//! From a call to its service: who may ask what, attachment, leases; and what concerns a session or the whole node.

use crate::names::permission;
use crate::names::rename_plan::Rename;
use crate::node::Node;
use crate::request::context::RequestContext;
use crate::request::sessions::{Party, Session};
use polvo_format::{NodeId, RegionId, SessionId};
use polvo_proto::{
    Answer, Ask, FsError, InodeRef, Made, PROTOCOL_VERSION, PageRun, Reply, Request, SegmentMap, WriteAt, ask, reply,
};
use polvo_region::Done;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most inodes recalled in one answer.
const RECALL_MAX: usize = 1024;

impl Node {
    /// Opens or rejoins a session.
    pub(crate) fn attach(
        &self,
        session: SessionId,
        party: Party,
        version: u32,
        name: String,
        home: Option<NodeId>,
    ) -> Result<(Arc<Session>, reply::Attached), FsError> {
        if version != PROTOCOL_VERSION {
            return Err(FsError::NotSupported(format!(
                "protocol version {version}: node {} speaks version {PROTOCOL_VERSION}",
                self.id().0
            )));
        }
        let tick = self.tick.load(Relaxed);
        // another pool in the place of this one would count from the beginning
        let pool = u64::from_le_bytes(*self.space.identity().pool.first_chunk().expect("an id is 16 bytes"));
        let number = || (pool ^ self.space.next_sequence()).max(1);
        let session = self.sessions.attach(session, number, party, name, home, tick)?;
        let reply = reply::Attached {
            lease_ms: u64::try_from(self.config.timeouts.lease.as_millis()).unwrap_or(u64::MAX),
            tick,
            map: (*self.map()).clone(),
            node: self.id(),
            number: session.number,
            needs_sync: self.needs_sync(),
            one_sided: self.gives_one_sided(party),
            checksums: self.space.layout().has_checksums(),
            past: self.space.past(),
        };
        Ok((session, reply))
    }
}

impl RequestContext<'_> {
    /// Does what is asked. The caller is attached; what is left to check is done by each service.
    pub(crate) async fn perform(&self, request: Request) -> Answer {
        match request {
            Request::Attach { .. } | Request::Fence | Request::Withdraw => {
                Err(FsError::Invalid("this request belongs to a connection".into()))
            }
            Request::Heartbeat { tick } => ask::Heartbeat::reply(Ok(self.heartbeat(tick))),
            Request::Detach => {
                self.node.end_session(self.session.id);
                ask::Detach::reply(Ok(()))
            }
            Request::Map => ask::Map::reply(Ok((*self.node.map()).clone())),
            Request::Segments { region, from } => ask::Segments::reply(self.segments(region, from)),
            Request::Lookup { dir, name } => ask::Lookup::reply(self.lookup(dir, &name).await),
            Request::GetAttr { ino, generation } => ask::GetAttr::reply(self.get_attr(ino, generation).await),
            Request::SetAttr { inode, set } => ask::SetAttr::reply(self.set_attr(inode, &set).await),
            Request::Create { dir, name, file, open } => ask::Create::reply(self.create(dir, name, file, open).await),
            Request::CreateUnnamed { dir, file } => ask::CreateUnnamed::reply(self.create_unnamed(dir, file).await),
            Request::Unlink { dir, name } => ask::Unlink::reply(self.unlink(dir, name).await),
            Request::Rmdir { dir, name } => ask::Rmdir::reply(self.rmdir(dir, name).await),
            Request::Link { inode, dir, name } => ask::Link::reply(self.link(inode, dir, name).await),
            Request::Rename {
                old_dir,
                old_name,
                new_dir,
                new_name,
                mode,
            } => {
                let rename = Rename {
                    old_dir,
                    old_name,
                    new_dir,
                    new_name,
                    mode,
                };
                ask::Rename::reply(Box::pin(self.rename(rename)).await)
            }
            Request::ReadLink { inode } => ask::ReadLink::reply(self.read_link(inode).await),
            Request::ReadDir { dir, after, max } => ask::ReadDir::reply(self.read_dir(dir, after, max).await),
            Request::Open { inode } => ask::Open::reply(self.open(inode).await),
            Request::Extents { inode, from } => ask::Extents::reply(self.extents(inode, from).await),
            Request::Release { inodes } => ask::Release::reply(self.release(&inodes)),
            Request::Write {
                inode,
                offset,
                append,
                known,
                bytes,
            } => {
                let at = WriteAt::from_wire(offset, append);
                ask::Write::reply(self.write_eager(inode, at, known, &bytes).await)
            }
            Request::Commit {
                inode,
                runs,
                crcs,
                append,
                known,
                want_pages,
            } => {
                let from = WriteAt::from_wire(0, append);
                ask::Commit::reply(
                    self.write_client_active(inode, &runs, &crcs, from, known, want_pages)
                        .await,
                )
            }
            Request::Fallocate {
                inode,
                mode,
                offset,
                len,
            } => ask::Fallocate::reply(self.fallocate(inode, mode, offset, len).await),
            Request::Sync => ask::Sync::reply(self.node.sync()),
            Request::Delegate { region, pages } => ask::Delegate::reply(self.delegate(region, pages).await),
            Request::ReturnSpace { runs } => ask::ReturnSpace::reply(self.return_space(&runs)),
            Request::GetXattr { inode, name } => ask::GetXattr::reply(self.get_xattr(inode, &name).await),
            Request::ListXattr { inode } => ask::ListXattr::reply(self.list_xattr(inode).await),
            Request::SetXattr {
                inode,
                name,
                value,
                mode,
            } => ask::SetXattr::reply(self.set_xattr(inode, &name, &value, mode).await),
            Request::RemoveXattr { inode, name } => ask::RemoveXattr::reply(self.remove_xattr(inode, &name).await),
            Request::Usage => ask::Usage::reply(Ok(self.node.usage())),
            Request::Past(past) => ask::Past::reply(self.past(&past)),
            Request::Status => ask::Status::reply(Ok(self.node.status())),
            Request::Check { region, page } => {
                let service = self.service(region)?;
                ask::Check::reply(self.node.checks.page(self.session.id, service, page))
            }
            Request::Scrub { region, from } => {
                ask::Scrub::reply(Ok(self.node.scrub(self.service(region)?, from).await))
            }
            Request::Shutdown => ask::Shutdown::reply(self.shutdown()),
            Request::Collect {
                txn,
                region,
                on_behalf,
                open,
                intents,
            } => ask::Collect::reply(self.collect(txn, region, on_behalf, open, &intents).await),
            Request::TxnState { txn } => ask::TxnState::reply(self.txn_state(txn)),
            Request::RenameLock { txn, release } => ask::RenameLock::reply(self.rename_lock(txn, release)),
            Request::Parent { inode } => ask::Parent::reply(self.parent(inode).await),
            Request::Lock { inode, lock, wait } => ask::Lock::reply(self.lock(inode, &lock, wait).await),
            Request::Unlock { inode, owner, range } => ask::Unlock::reply(self.unlock(inode, owner, range)),
            Request::TestLock { inode, lock } => ask::TestLock::reply(self.test_lock(inode, &lock)),
            Request::CancelLock { inode, ticket } => ask::CancelLock::reply(self.cancel_lock(inode, ticket)),
            Request::LockWaits => ask::LockWaits::reply(self.lock_waits()),
            Request::Accessed { inodes, strict } => ask::Accessed::reply(self.accessed(&inodes, strict).await),
            Request::Read {
                inode,
                offset,
                len,
                into,
                verify,
            } => ask::Read::reply(Box::pin(self.read(inode, offset, len, into, verify)).await),
            Request::WriteFrom {
                inode,
                offset,
                append,
                known,
                from,
                len,
            } => {
                let at = WriteAt::from_wire(offset, append);
                ask::WriteFrom::reply(Box::pin(self.write_server_directed(inode, at, known, from, len)).await)
            }
            #[cfg(feature = "two-phase")]
            Request::Prepare {
                txn,
                region,
                on_behalf,
                open,
                intents,
            } => ask::Prepare::reply(Box::pin(self.prepare(txn, region, on_behalf, open, &intents)).await),
            #[cfg(feature = "two-phase")]
            Request::Conclude { txn, region, commit } => ask::Conclude::reply(self.conclude(txn, region, commit)),
            #[cfg(not(feature = "two-phase"))]
            Request::Prepare { .. } | Request::Conclude { .. } => Err(FsError::NotSupported(
                "two-phase commit, with which nodes are built for comparison only".into(),
            )),
            Request::FollowLog { dir, known } => ask::FollowLog::reply(self.follow_log(dir, known).await),
            Request::OpenToWrite {
                inode,
                claim,
                number,
                want_map,
            } => ask::OpenToWrite::reply(self.open_to_write(inode, claim, number, want_map).await),
            Request::EndWriting { inodes } => ask::EndWriting::reply(self.end_writing(&inodes)),
        }
    }

    /// What the request has done, if it was done: in this run, though nothing else is known of its session any more, or before.
    pub(crate) fn done_before(&self) -> Option<Done> {
        let origin = self.origin()?;
        let mut regions = self.node.regions.values();
        regions.find_map(|service| service.enter(|region| region.done_before(origin)))
    }

    /// The answer to a request that has been done: what it concerned as it is now.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] when that is gone since; EIO when it is not what a request of that kind does.
    pub(crate) async fn answer_again(&self, request: &Request, done: Done) -> Answer {
        let gone = |error| match error {
            FsError::Stale | FsError::NotFound => FsError::Unreachable {
                node: self.node.id().0,
                why: "it was started anew; the operation was done, and what it was done to is gone since".into(),
            },
            error => error,
        };
        let Done {
            inode, offset, target, ..
        } = done;
        match request {
            Request::Withdraw | Request::Write { .. } | Request::WriteFrom { .. } | Request::Commit { .. } => {
                Ok(Reply::WrittenBefore { offset })
            }
            Request::Create { .. } => {
                let made = target.ok_or_else(|| FsError::Io("it was done, and made nothing".into()))?;
                let (attr, tail) = self.attr_and_tail(made).await.map_err(gone)?;
                let (_, dir_tail) = self.attr_and_tail(inode).await.map_err(gone)?;
                let before = true;
                Ok(Reply::Made(Made {
                    attr,
                    tail,
                    dir_tail,
                    before,
                }))
            }
            Request::Rename { .. } => Ok(Reply::Done),
            request => {
                let linked = target.filter(|_| matches!(request, Request::Link { .. }));
                let (attr, tail) = self.attr_and_tail(linked.unwrap_or(inode)).await.map_err(gone)?;
                Ok(Reply::Attr { attr, tail })
            }
        }
    }

    fn heartbeat(&self, tick: u64) -> reply::Renewed {
        let now = self.node.tick.load(Relaxed);
        self.session.renew(tick.min(now));
        let mut recall: Vec<InodeRef> = Vec::new();
        for service in self.node.regions.values() {
            recall.extend(service.enter(|region| region.dead_held(self.session.id)));
        }
        recall.truncate(RECALL_MAX);
        reply::Renewed {
            tick: now,
            recall,
            epoch: self.node.map().epoch,
        }
    }

    fn segments(&self, region: RegionId, from: u32) -> Result<SegmentMap, FsError> {
        let service = self.service(region)?;
        let mut keys = self.node.keys;
        if self.session.party == Party::Client {
            keys.node = 0;
        }
        let mut map = service.segment_map(from, keys);
        if !self.node.gives_one_sided(self.session.party) {
            map.read_key = 0;
            map.segments.iter_mut().for_each(|place| place.write_key = 0);
        }
        Ok(map)
    }

    fn release(&self, inodes: &[InodeRef]) -> Result<(), FsError> {
        for inode in inodes {
            if let Some(service) = self.node.service(inode.ino.region()) {
                service.enter(|region| region.release(self.session.id, *inode));
            }
        }
        Ok(())
    }

    fn return_space(&self, runs: &[PageRun]) -> Result<(), FsError> {
        for of_region in runs.chunk_by(|a, b| a.gpa.region() == b.gpa.region()) {
            if let Some(service) = self.node.service(of_region[0].gpa.region()) {
                service.enter(|region| region.return_space(self.session.id, of_region));
            }
        }
        Ok(())
    }

    fn shutdown(&self) -> Result<(), FsError> {
        if self.session.party == Party::Client && !permission::is_administrator(self.cred) {
            return Err(FsError::NotPermitted);
        }
        tracing::info!(by = %self.session.id, "asked to shut down");
        self.node.stop();
        Ok(())
    }
}

impl Node {
    /// Makes earlier operations durable against power loss where the medium needs it.
    pub(crate) fn sync(&self) -> Result<(), FsError> {
        self.pmem.sync().map_err(|error| FsError::Io(error.to_string()))
    }
}
