//! Requests to nodes, one by one, colocated or remote: what a service takes without a client
//! library around it.

use crate::BenchError;
use polvo_cluster::{Links, MapCell, SessionContext};
use polvo_format::{FileKind, NodeId, SessionId};
use polvo_node::Node;
use polvo_proto::{Ask, Cred, FsError, InodeRef, NewFile, PROTOCOL_VERSION, RenameMode, XattrMode, ask};
use polvo_testbed::cluster::BenchNode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A session, on one thread.
pub struct Requester {
    /// The one it is colocated with, which is called directly.
    node: Option<Arc<Node>>,
    links: Rc<Links>,
}

fn next_session() -> SessionId {
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    SessionId(0xbe9c_0000_0000_0000 | SESSIONS.fetch_add(1, Relaxed))
}

// some of it is for the comparison with two-phase commit alone
#[cfg_attr(not(feature = "two-phase"), allow(dead_code))]
impl Requester {
    /// Attaches to `node`, colocated. New inodes of directories with local placement go to the node `home`.
    pub async fn new(node: &Arc<Node>, home: u16) -> Result<Requester, BenchError> {
        let links = node.client_context(next_session(), "requester".into()).links();
        let requester = Requester {
            node: Some(node.clone()),
            links,
        };
        let attach = ask::Attach {
            version: PROTOCOL_VERSION,
            name: "requester".into(),
            home: Some(NodeId(home)),
            fence: 0,
            syncs: true,
        };
        requester.ask(attach).await?;
        Ok(requester)
    }

    /// A remote one: everything goes to the first node of the cluster, over `tcp` or `shm`.
    pub fn remote(cluster: &BenchNode, provider: &str) -> Requester {
        let (name, provider) = ("requester".into(), Some(provider.into()));
        let map = MapCell::new((*cluster.node().map()).clone());
        let (me, limits) = (cluster.client_identity(), *cluster.node().timeouts());
        let context = SessionContext::new(map, me, next_session(), name, None, limits, provider);
        Requester {
            node: None,
            links: context.links(),
        }
    }

    /// One request; a colocated one is carried out on this thread.
    pub async fn ask<A: Ask>(&self, ask: A) -> Result<A::Answer, FsError> {
        match &self.node {
            Some(node) => {
                let call = self.links.make_call(Cred::Kernel, ask);
                A::answered(node.handle(&self.links, call).await, node.id())
            }
            None => self.links.call_node(NodeId(0), Cred::Kernel, ask).await,
        }
    }

    /// Its links, for one-sided operations.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Makes a file or a directory.
    pub async fn make(&self, dir: InodeRef, name: &str, kind: FileKind) -> Result<InodeRef, FsError> {
        let file = NewFile {
            kind,
            mode: 0o755,
            ..polvo_testbed::cluster::new_file()
        };
        let name = name.into();
        let open = false;
        let made = self.ask(ask::Create { dir, name, file, open }).await?;
        Ok(InodeRef {
            ino: made.attr.ino,
            generation: made.attr.generation,
        })
    }

    /// Removes a file.
    pub async fn unlink(&self, dir: InodeRef, name: &str) -> Result<(), FsError> {
        let name = name.into();
        self.ask(ask::Unlink { dir, name }).await.map(drop)
    }

    /// Removes a directory.
    pub async fn rmdir(&self, dir: InodeRef, name: &str) -> Result<(), FsError> {
        let name = name.into();
        self.ask(ask::Rmdir { dir, name }).await.map(drop)
    }

    /// Renames.
    pub async fn rename(&self, old_dir: InodeRef, old: &str, new_dir: InodeRef, new: &str) -> Result<(), FsError> {
        let request = ask::Rename {
            old_dir,
            old_name: old.into(),
            new_dir,
            new_name: new.into(),
            mode: RenameMode::Replace,
        };
        self.ask(request).await.map(drop)
    }

    /// New inodes of a directory go to the home of who makes them.
    pub async fn place_locally(&self, dir: InodeRef) -> Result<(), FsError> {
        let request = ask::SetXattr {
            inode: dir,
            name: b"polvo.placement".to_vec(),
            value: b"local".to_vec(),
            mode: XattrMode::Any,
        };
        self.ask(request).await.map(drop)
    }

    /// Keeps the session alive, and lets nodes use space again that it may have been reading.
    pub async fn renew(&self) {
        if self.node.is_some() {
            // whatever the tick: nothing is being read at the moment
            let _best_effort = self.ask(ask::Heartbeat { tick: u64::MAX }).await;
        }
        self.links.renew().await;
    }

    /// Closes its connections.
    pub fn close(&self) {
        self.links.close();
    }
}
