//! From a call to its service: who may ask what, attachment, leases; and what concerns a session or the whole node.

use crate::names::permission;
use crate::names::rename_plan::Rename;
use crate::node::Node;
use crate::request::context::RequestContext;
use crate::request::sessions::{Party, Session};
use polvo_cluster::{MovedCopy, join_all};
use polvo_format::{NodeId, RegionId, SessionId};
use polvo_proto::{
    Answer, Ask, ClusterMap, FsError, InodeRef, Made, NodeInfo, PROTOCOL_VERSION, PageRun, Reply, Request, SegmentMap,
    WriteAt, ask, reply,
};
use polvo_region::Done;
use polvo_region::planted::{Planted, planted};
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
            map: Box::new((*self.map()).clone()),
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

/// One row a request: its kind, its fields, and what serves it, whose result is of the type that answers that kind
/// ([`Ask::Answer`]). A request without a row does not compile.
macro_rules! dispatch {
    ($request:ident => $(
        $(#[$when:meta])?
        $kind:ident $( { $($field:ident),* } )? $( ( $only:ident ) )? => $service:expr,
    )*) => {
        match $request {
            $( $(#[$when])? Request::$kind $( { $($field),* } )? $( ($only) )? => ask::$kind::reply($service), )*
            Request::Attach { .. } | Request::Fence | Request::Withdraw { .. } => {
                Err(FsError::Invalid("this request belongs to a connection".into()))
            }
            #[cfg(not(feature = "two-phase"))]
            Request::Prepare { .. } | Request::Conclude { .. } => Err(FsError::NotSupported(
                "two-phase commit, with which nodes are built for comparison only".into(),
            )),
        }
    };
}

impl RequestContext<'_> {
    /// Does what is asked. The caller is attached; what is left to check is done by each service.
    pub(crate) async fn perform(&self, request: Request) -> Answer {
        dispatch!(request =>
            Heartbeat { tick } => Ok(self.heartbeat(tick)),
            Detach => {
                self.node.end_session(self.session.id);
                Ok(())
            },
            Map => Ok((*self.node.map()).clone()),
            Segments { region, from } => self.segments(region, from),
            Lookup { dir, name } => self.lookup(dir, &name).await,
            GetAttr { ino, generation } => self.get_attr(ino, generation).await,
            SetAttr { inode, set } => self.set_attr(inode, &set).await,
            Create { dir, name, file, open } => self.create(dir, name, file, open).await,
            CreateUnnamed { dir, file } => self.create_unnamed(dir, file).await,
            Unlink { dir, name } => self.unlink(dir, name).await,
            Rmdir { dir, name } => self.rmdir(dir, name).await,
            Link { inode, dir, name } => self.link(inode, dir, name).await,
            Rename { old_dir, old_name, new_dir, new_name, mode } => {
                let rename = Rename { old_dir, old_name, new_dir, new_name, mode };
                Box::pin(self.rename(rename)).await
            },
            ReadLink { inode } => self.read_link(inode).await,
            ReadDir { dir, after, max } => self.read_dir(dir, after, max).await,
            Open { inode } => self.open(inode).await,
            Extents { inode, from } => self.extents(inode, from).await,
            Release { inodes } => self.release(&inodes),
            Write { inode, offset, append, known, bytes } => {
                self.write_eager(inode, WriteAt::from_wire(offset, append), known, &bytes).await
            },
            Commit { inode, runs, crcs, append, known, want_pages } => {
                let from = WriteAt::from_wire(0, append);
                self.write_client_active(inode, &runs, &crcs, from, known, want_pages).await
            },
            Fallocate { inode, mode, offset, len } => self.fallocate(inode, mode, offset, len).await,
            Sync => self.sync().await,
            Delegate { region, pages } => self.delegate(region, pages).await,
            ReturnSpace { runs } => self.return_space(&runs),
            GetXattr { inode, name } => self.get_xattr(inode, &name).await,
            ListXattr { inode } => self.list_xattr(inode).await,
            SetXattr { inode, name, value, mode } => self.set_xattr(inode, &name, &value, mode).await,
            RemoveXattr { inode, name } => self.remove_xattr(inode, &name).await,
            Usage => Ok(self.node.usage()),
            Past(past) => self.past(&past),
            Status => Ok(self.node.status()),
            Check { region, page } => self.node.checks.page(self.session.id, self.service(region)?, page),
            Scrub { region, from } => Ok(Box::pin(self.node.scrub(self.links, self.service(region)?, from)).await),
            ScrubCopies { region, from } => {
                Box::pin(self.node.scrub_copies(self.links, self.service(region)?, from)).await
            },
            Shutdown => self.shutdown(),
            Collect { txn, region, on_behalf, open, intents } => {
                self.collect(txn, region, on_behalf, open, &intents).await
            },
            TxnState { txn } => self.txn_state(txn).await,
            RenameLock { txn, release } => self.rename_lock(txn, release),
            Parent { inode } => self.parent(inode).await,
            Lock { inode, lock, wait } => self.lock(inode, &lock, wait).await,
            Unlock { inode, owner, range } => self.unlock(inode, owner, range),
            TestLock { inode, lock } => self.test_lock(inode, &lock).await,
            ClaimLocks { inode, owner, term, ranges, whole } => {
                self.claim_locks(inode, owner, term, &ranges, whole).await
            },
            CancelLock { inode, ticket } => self.cancel_lock(inode, ticket),
            LockWaits => self.lock_waits(),
            Accessed { inodes, strict } => self.accessed(&inodes, strict).await,
            Read { inode, offset, len, into, verify } => Box::pin(self.read(inode, offset, len, into, verify)).await,
            WriteFrom { inode, offset, append, known, from, len } => {
                let at = WriteAt::from_wire(offset, append);
                Box::pin(self.write_server_directed(inode, at, known, from, len)).await
            },
            #[cfg(feature = "two-phase")]
            Prepare { txn, region, on_behalf, open, intents } => {
                Box::pin(self.prepare(txn, region, on_behalf, open, &intents)).await
            },
            #[cfg(feature = "two-phase")]
            Conclude { txn, region, commit } => self.conclude(txn, region, commit),
            FollowLog { dir, known } => self.follow_log(dir, known).await,
            OpenToWrite { inode, claim, number, want_map } => self.open_to_write(inode, claim, number, want_map).await,
            EndWriting { inodes } => self.end_writing(&inodes),
            TakeTokens { inodes } => Box::pin(self.take_tokens(&inodes)).await,
            Watch { term, answered, end } => Box::pin(self.watch(term, &answered, end)).await,
            FenceOff { node } => Box::pin(self.fence_off(node)).await,
            ReadBytes { region, pieces } => Box::pin(self.read_bytes(region, &pieces)).await,
            AttachMirror { region, segment_shift, fill_from, locks } => {
                self.attach_mirror(region, segment_shift, fill_from, locks)
            },
            MirrorSegments { region, segments } => self.mirror_segments(region, &segments).await,
            KeepSegments { region, key, range, segments } => self.keep_segments(region, key, range, &segments),
            PageSums { region, key, segment, first, count, checksums } => {
                Box::pin(self.page_sums(region, key, (segment, first, count), checksums)).await
            },
            Beacon { epoch } => self.asking_node().and_then(|node| self.node.beacon(node, epoch)),
            ApplyMirror { region, whole } => self.apply_mirror(region, whole),
            Register(ask) => self.register(*ask),
            NewMap(map) => self.new_map(&map),
            RemoveNode { node, force } => Box::pin(self.remove_node(node, force)).await,
            AddNode(node) => Box::pin(self.add_node(&node)).await,
            MoveCopy { region, from, to } => Box::pin(self.move_copy(MovedCopy { region, from, to })).await,
            HandOver { region, to } => Box::pin(self.hand_over(region, to)).await,
            TakeOver { region, epoch, locked } => self.take_over(region, epoch, locked),
            ShareUsage(usage) => self.share_usage(usage),
            ReleaseSegments => Box::pin(self.release_segments()).await,
        )
    }

    /// What the request has done, if it was done: by this incarnation, though nothing else is known of its session any more, or by
    /// an earlier one.
    ///
    /// # Errors
    /// A mirror does not take it.
    pub(crate) async fn done_before(&self) -> Result<Option<Done>, FsError> {
        let Some(origin) = self.origin() else { return Ok(None) };
        for service in self.node.regions.all() {
            if let Some(done) = service.enter(|region| region.done_before(origin)) {
                self.answerable(service).await?;
                return Ok(Some(done));
            }
        }
        Ok(None)
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
            Request::Withdraw { .. } | Request::Write { .. } | Request::WriteFrom { .. } | Request::Commit { .. } => {
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
            Request::Rename { .. } => {
                let (moved, other) = (None, None);
                Ok(Reply::Renamed { moved, other })
            }
            Request::Unlink { .. } | Request::Rmdir { .. } => {
                let (_, tail) = self.attr_and_tail(inode).await.map_err(gone)?;
                Ok(Reply::Removed { tail, target: None })
            }
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
        for service in self.node.regions.all() {
            recall.extend(service.enter(|region| region.dead_held(self.session.id)));
        }
        recall.truncate(RECALL_MAX);
        reply::Renewed {
            tick: now,
            recall,
            epoch: self.node.map.epoch(),
            serves: self.node.may_promise(),
        }
    }

    fn segments(&self, region: RegionId, from: u32) -> Result<SegmentMap, FsError> {
        let service = self.service(region)?;
        let asking = match self.session.party {
            Party::Node(node) => Some(node),
            Party::Client => None,
        };
        let keys = self.node.keys.lock().of(asking, &self.node.memory, &self.node.pmem);
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

    async fn remove_node(&self, node: NodeId, force: bool) -> Result<Option<Vec<RegionId>>, FsError> {
        self.must_be_administrator()?;
        tracing::warn!(by = %self.session.id, node = node.0, force, "asked to remove a node");
        self.node.remove_node(self.links, node, force).await
    }

    async fn add_node(&self, node: &NodeInfo) -> Result<ClusterMap, FsError> {
        self.must_be_administrator()?;
        tracing::warn!(by = %self.session.id, node = node.id.0, "asked to add a node");
        let map = self.node.add_node(self.links, node).await?;
        Ok((*map).clone())
    }

    async fn move_copy(&self, moved: MovedCopy) -> Result<(), FsError> {
        self.must_be_administrator()?;
        self.node.move_copy(self.links, moved).await
    }

    async fn hand_over(&self, region: RegionId, to: NodeId) -> Result<(), FsError> {
        self.must_be_administrator()?;
        self.node.hand_over(self.links, region, to).await
    }

    fn must_be_administrator(&self) -> Result<(), FsError> {
        match self.session.party == Party::Client && !permission::is_administrator(self.cred) {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    fn shutdown(&self) -> Result<(), FsError> {
        self.must_be_administrator()?;
        tracing::info!(by = %self.session.id, "asked to shut down");
        self.node.stop();
        Ok(())
    }
}

impl RequestContext<'_> {
    /// Makes earlier operations durable against power loss where the medium needs it, and has the mirrors have those in regions that
    /// are ahead of them.
    pub(crate) async fn sync(&self) -> Result<(), FsError> {
        self.node.sync()?;
        let ahead = self.node.regions.all().filter(|service| service.is_async());
        let mirrored = ahead.map(|service| service.mirrored(self.links, || self.deadline()));
        match planted(Planted::SyncNotAwaited) {
            true => Ok(()),
            false => join_all(mirrored).await.into_iter().collect(),
        }
    }
}

impl Node {
    /// Makes earlier operations durable against power loss where the medium needs it.
    pub(crate) fn sync(&self) -> Result<(), FsError> {
        self.pmem.sync().map_err(|error| FsError::Io(error.to_string()))
    }
}
