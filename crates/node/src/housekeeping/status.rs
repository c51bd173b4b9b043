//! What `polvo status` shows of a node.

use crate::node::Node;
use crate::region_service::RegionService;
use crate::replication::Replication;
use crate::request::sessions::{self, Party};
use polvo_format::{Lsn, RegionId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Sessions listed; more are only counted, so that the answer fits a message.
const SESSIONS_SHOWN: usize = 100;
/// Regions listed, likewise, and copies of others' regions.
const REGIONS_SHOWN: usize = 128;

#[derive(Serialize)]
struct Status {
    node: u16,
    name: String,
    /// Of the cluster map that it goes by.
    epoch: u64,
    /// Whether it votes on changes of that: its map says so, and it can read what it has promised.
    votes: bool,
    listen: Vec<String>,
    providers: Vec<&'static str>,
    medium: String,
    persistence: String,
    needs_sync: bool,
    uptime_ms: u64,
    pool: Pool,
    regions_total: usize,
    regions: Vec<Region>,
    copies_total: usize,
    copies: Vec<Copy>,
    sessions_total: usize,
    sessions: Vec<Session>,
    transactions: Transactions,
    locks: Locks,
    /// Tokens that sessions have of inodes here.
    tokens: usize,
    rpc: Rpc,
    links: Links,
    scrubbed: Scrubbed,
    fills: Fills,
}

/// Copies that this node has made elsewhere of regions that it serves, since it was started.
#[derive(Serialize)]
struct Fills {
    under_way: u64,
    made: u64,
    /// Of what was there: only what differs is sent.
    compared_bytes: u64,
    sent_bytes: u64,
}

/// Since the node was started.
#[derive(Serialize)]
struct Scrubbed {
    /// Whether file data has checksums at all.
    checksums: bool,
    bytes: u64,
    /// Places, as often as they were found.
    damaged: u64,
    /// Pages that were damaged and are what a copy has.
    mended: u64,
    /// Of copies elsewhere.
    compared_bytes: u64,
    /// Pages that were others in a copy, and were sent to it.
    sent_pages: u64,
}

#[derive(Serialize)]
struct Pool {
    bytes: u64,
    segments: u32,
    free_segments: u32,
    segment_bytes: u64,
    free_bytes: u64,
    data_bytes: u64,
    inodes: u64,
    free_inodes: u64,
}

#[derive(Serialize)]
struct Region {
    id: u16,
    epoch: u64,
    role: &'static str,
    /// Whether it is known that nobody else serves it: nothing is answered before.
    confirmed: bool,
    inodes: u64,
    segments: usize,
    free_bytes: u64,
}

/// Of a region that is served elsewhere.
#[derive(Serialize)]
struct Copy {
    region: u16,
    /// Number of the last record that was put in place.
    applied: u64,
    /// Whether it has got all that the region held when it was begun.
    whole: bool,
}

#[derive(Serialize)]
struct Session {
    id: String,
    name: String,
    node: bool,
    home: Option<u16>,
    opens: u64,
    delegated_pages: u64,
    age_ms: u64,
    lease_left_ms: u64,
}

#[derive(Serialize)]
struct Transactions {
    undecided: usize,
    undispatched: usize,
}

/// Advisory locks.
#[derive(Serialize)]
struct Locks {
    held: usize,
    waits: usize,
}

#[derive(Serialize)]
struct Rpc {
    total: u64,
    by_kind: BTreeMap<&'static str, u64>,
}

/// What this node itself sent to others.
#[derive(Serialize)]
struct Links {
    rpcs: u64,
    renewals: u64,
    rpc_bytes: u64,
    one_sided_batches: u64,
    one_sided_bytes: u64,
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn copy_status((region, applied, whole): (RegionId, Lsn, bool)) -> Copy {
    Copy {
        region: region.0,
        applied: applied.0,
        whole,
    }
}

impl Node {
    /// Everything there is to show, as JSON.
    pub(crate) fn status(self: &Arc<Self>) -> String {
        let sessions = self.sessions.list();
        let (held, waits) = self.locks.counts();
        let links = self.link_totals();
        let copies = self.copies.list();
        let status = Status {
            node: self.id().0,
            name: self.config.name.clone(),
            epoch: self.map.epoch().0,
            votes: self.votes(),
            listen: self.bound().iter().map(ToString::to_string).collect(),
            providers: self.providers(),
            medium: format!("{:?}", self.pmem.medium()).to_lowercase(),
            persistence: format!("{:?}", self.pmem.persistence()).to_lowercase(),
            needs_sync: self.needs_sync(),
            uptime_ms: millis(self.started.elapsed()),
            pool: self.pool_status(),
            regions_total: self.regions.all().count(),
            regions: self.region_status(),
            copies_total: copies.len(),
            copies: copies.into_iter().take(REGIONS_SHOWN).map(copy_status).collect(),
            sessions_total: sessions.len(),
            sessions: sessions
                .iter()
                .take(SESSIONS_SHOWN)
                .map(|session| self.session_status(session))
                .collect(),
            locks: Locks { held, waits },
            tokens: self.tokens.count(),
            transactions: Transactions {
                undecided: self.undecided.count(),
                undispatched: self.in_doubt(),
            },
            rpc: Rpc {
                total: self.counters.total(),
                by_kind: self.counters.by_kind().into_iter().collect(),
            },
            links: Links {
                rpcs: links.rpcs,
                renewals: links.renewals,
                rpc_bytes: links.rpc_bytes,
                one_sided_batches: links.one_sided_batches,
                one_sided_bytes: links.one_sided_bytes,
            },
            scrubbed: Scrubbed {
                checksums: self.space.layout().has_checksums(),
                bytes: self.scrubbed.bytes.load(Relaxed),
                damaged: self.scrubbed.damaged.load(Relaxed),
                mended: self.scrubbed.mended.load(Relaxed),
                compared_bytes: self.scrubbed.copies.compared_bytes.load(Relaxed),
                sent_pages: self.scrubbed.sent.load(Relaxed),
            },
            fills: Fills {
                under_way: self.fills.under_way.load(Relaxed),
                made: self.fills.made.load(Relaxed),
                compared_bytes: self.fills.compared_bytes.load(Relaxed),
                sent_bytes: self.fills.sent_bytes.load(Relaxed),
            },
        };
        serde_json::to_string(&status).expect("a status holds nothing that JSON cannot say")
    }

    fn providers(&self) -> Vec<&'static str> {
        let mut providers: Vec<&'static str> = self.config.listen.iter().map(|address| address.provider()).collect();
        providers.dedup();
        providers
    }

    fn pool_status(&self) -> Pool {
        let (usage, pool) = (self.usage(), self.space.usage());
        Pool {
            bytes: usage.total_bytes,
            segments: pool.segments,
            free_segments: pool.free_segments,
            segment_bytes: pool.segment_size,
            free_bytes: usage.free_bytes,
            data_bytes: usage.data_bytes,
            inodes: usage.inodes,
            free_inodes: usage.free_inodes,
        }
    }

    fn region_status(&self) -> Vec<Region> {
        let map = self.map();
        let of = |service: &Arc<RegionService>| {
            let (usage, segments) = service.enter(|region| (region.usage(), region.segments().count()));
            Region {
                id: service.id.0,
                epoch: map.region(service.id).map_or(0, |info| info.epoch.0),
                role: "primary",
                confirmed: service.replication().is_none_or(Replication::is_confirmed),
                inodes: usage.inodes,
                segments,
                free_bytes: usage.free_bytes,
            }
        };
        self.regions.all().take(REGIONS_SHOWN).map(of).collect()
    }

    fn session_status(&self, session: &sessions::Session) -> Session {
        let held = self
            .regions
            .all()
            .map(|service| service.enter(|region| region.held_by_session(session.id)));
        let (opens, delegated_pages) = held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1));
        Session {
            // the upper half: who knows all of it can speak for the session
            id: format!("{:08x}", session.id.0 >> 32),
            name: session.name.clone(),
            node: session.party != Party::Client,
            home: session.home.map(|node| node.0),
            opens,
            delegated_pages,
            age_ms: millis(session.since.elapsed()),
            lease_left_ms: millis(session.lease_left(self.config.timeouts.lease)),
        }
    }
}
