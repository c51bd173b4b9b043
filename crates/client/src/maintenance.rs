//! What goes on beside the operations: the lease is renewed, what is held or kept for no use is returned.

use crate::local_client::LocalClient;
use polvo_format::NodeId;
use polvo_proto::{InodeRef, ask, reply};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Releases, and marks of access times, wait this long for more of their kind.
const GATHER: Duration = Duration::from_millis(20);

/// A node whose connection was lost is asked so soon, and so often for the length of a lease, whether it is back: until it has
/// heard of us, it holds space back that we might still be storing to.
const RETURNED: Duration = Duration::from_millis(500);

impl LocalClient {
    /// Renews the lease three times in its length, lets go of what the nodes ask for and what is not used any more,
    /// until the client is shut down; then ends the session. Sleeps otherwise.
    pub async fn maintain(self: Rc<Self>) {
        // the lease at one node is not to end because another is away
        self.links.never_wait();
        // nor are locks to be lost because something else waits
        tokio::select! {
            biased;
            () = self.watch_locks() => {}
            () = self.keep_up() => {}
        }
        self.end().await;
    }

    async fn keep_up(&self) {
        let every = self.client.context.timeouts().renew_every();
        let mut next = Instant::now() + every;
        // since when a node may have been started anew without having heard of us
        let mut lost: Option<Instant> = None;
        let mut claimed = self.client.losses();
        let stop = &self.client.stop;
        while !stop.is_asked() {
            // in this order: a lease that is due is not put off by releases, and a simulated run repeats
            tokio::select! {
                biased;
                () = stop.changed.notified() => {}
                () = self.links.lost() => {
                    lost = Some(Instant::now());
                    next = next.min(Instant::now() + RETURNED);
                }
                () = tokio::time::sleep_until(next) => {
                    self.client.access_times.begin_day_if_due();
                    let all_there = self.renew().await;
                    let losses = self.client.losses();
                    if claimed != losses && self.keep_open().await {
                        claimed = losses;
                    }
                    lost = lost.filter(|since| !all_there && since.elapsed() < every * 3);
                    next = Instant::now() + if lost.is_some() { RETURNED } else { every };
                    self.release_some().await;
                    self.end_writers().await;
                    self.release_locks_left().await;
                    let excess = self.client.extent_pool.excess();
                    self.return_space(excess).await;
                }
                () = self.client.open_table.work.notified() => {
                    tokio::select! {
                        biased;
                        () = stop.changed.notified() => break,
                        () = tokio::time::sleep(GATHER) => {}
                    }
                    self.release_some().await;
                    self.end_writers().await;
                    self.send_accesses().await;
                }
            }
        }
    }

    /// Renews the lease everywhere, once, and does what the answers ask for. Happens by itself three times in a lease. True when
    /// every node has answered.
    pub async fn renew(&self) -> bool {
        let sent = Instant::now();
        let mut answers = self.links.renew().await;
        if let Some(here) = &self.client.colocated
            && let Some(answer) = self.renew_colocated(here).await
        {
            answers.push((here.node.id(), answer));
        }
        let mut newest = self.client.map().epoch;
        let mut all_there = true;
        for (node, answer) in answers {
            let renewed = match answer {
                Ok(renewed) => renewed,
                Err(error) => {
                    all_there = false;
                    tracing::debug!(%node, %error, "lease not renewed");
                    if self.client.map().is_replicated() {
                        self.links.ask_around(node).await;
                    }
                    continue;
                }
            };
            let epoch = renewed.epoch;
            let map = self.client.map();
            let is_there = |inode: InodeRef| map.primary(inode.ino.region()) == Some(node);
            self.client.locks.renewed(node, sent, is_there);
            self.renewed(node, renewed).await;
            if epoch > newest {
                match self.call_node(node, ask::Map).await {
                    Ok(map) => {
                        self.client.context.map().offer(map);
                        newest = epoch;
                    }
                    Err(error) => tracing::debug!(%node, %error, "no newer map"),
                }
            }
        }
        all_there
    }

    /// A node has renewed the lease.
    async fn renewed(&self, node: NodeId, renewed: reply::Renewed) {
        let map = self.client.map();
        self.client
            .extent_pool
            .confirm_where(|region| map.primary(region) == Some(node));
        let unknown: Vec<InodeRef> = renewed
            .recall
            .into_iter()
            .filter(|inode| self.client.open_table.recalled(*inode))
            .collect();
        if !unknown.is_empty() {
            self.release_at(node, &unknown).await;
        }
    }
}
