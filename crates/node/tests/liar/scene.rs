//! The scene for clients that lie: somebody honest, a liar, and all that a lie could change, compared afterwards.

use crate::common::*;
use polvo_fabric::{FabricError, Verb};
use polvo_format::{Attr, FileKind, Gpa, NodeId, RegionId, Tail};
use polvo_node::sim::{Cluster, ClusterOptions, run};
use polvo_proto::*;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Segments of 256 KiB.
pub const SHIFT: u32 = 18;

#[derive(PartialEq, Debug)]
pub struct Thing {
    attr: Attr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Length and hash.
    content: (usize, u64),
}

/// Is it the error that is due?
pub type Expected = fn(&FsError) -> bool;

/// All that a lie could change.
#[derive(PartialEq, Debug)]
pub struct World {
    tree: BTreeMap<String, Thing>,
    usage: Vec<Usage>,
    /// Of each node: sessions with what they hold, locks, transactions.
    held: Vec<Vec<String>>,
}

/// A little tree, somebody honest with a file open, a lock, and space to write to, and a liar with space of its own.
/// Everything but the root lies in one region.
pub struct Scene {
    pub honest: Caller,
    pub liar: Caller,
    pub node: u16,
    pub region: RegionId,
    pub dir: InodeRef,
    pub file: InodeRef,
    pub link: InodeRef,
    pub pipe: InodeRef,
    /// Delegated to the honest one, and to the liar.
    pub theirs: PageRun,
    pub ours: PageRun,
}

pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

pub async fn inside(c: &Caller, dir: InodeRef, name: &str, mut file: NewFile) -> InodeRef {
    if file.kind == FileKind::Symlink {
        file.target = b"file".to_vec();
    }
    for n in 0..500 {
        let tried = format!("{name}-{n}");
        let made = c.make(dir, &tried, file.clone(), false).await.unwrap();
        if made.ino.region() == dir.ino.region() {
            c.rename(dir, &tried, dir, name).await.unwrap();
            return made;
        }
        match file.kind {
            FileKind::Directory => c.rmdir(dir, &tried).await.unwrap(),
            _ => c.unlink(dir, &tried).await.unwrap(),
        }
    }
    panic!("no {name} came to the region of its directory")
}

impl Scene {
    pub async fn new(cluster: &Cluster) -> Scene {
        let (honest, liar) = (Caller::new(cluster, "honest"), Caller::new(cluster, "liar"));
        let dir = honest.directory_at(cluster, 1, "d").await;
        let region = dir.ino.region();
        let file = inside(&honest, dir, "file", new_file(FileKind::File, 0o644)).await;
        inside(&honest, dir, "sub", new_file(FileKind::Directory, 0o755)).await;
        let link = inside(&honest, dir, "link", new_file(FileKind::Symlink, 0o777)).await;
        let pipe = inside(&honest, dir, "pipe", new_file(FileKind::Fifo, 0o600)).await;
        honest.write_active(file, 0, &pattern(20_000, 7)).await.unwrap();
        honest.write(file, 5, b"small").await.unwrap();
        let (name, value, mode) = (b"user.a".to_vec(), b"value".to_vec(), XattrMode::Any);
        let request = Request::SetXattr {
            inode: file,
            name,
            value,
            mode,
        };
        honest.ask(region, request).await.unwrap();
        honest.open(file).await.unwrap();
        let lock = lock_of(1, LockMode::Exclusive, LockRange { first: 0, last: 9 });
        let request = Request::Lock {
            inode: file,
            lock,
            wait: None,
        };
        honest.ask(region, request).await.unwrap();
        let theirs = honest.delegate(region, 8).await.unwrap()[0];
        let ours = liar.delegate(region, 8).await.unwrap()[0];
        for node in 0..3 {
            liar.ask_node(node, Request::Map).await.unwrap(); // attached everywhere
        }
        Scene {
            honest,
            liar,
            node: 1,
            region,
            dir,
            file,
            link,
            pipe,
            theirs,
            ours,
        }
    }

    pub async fn tree(&self) -> BTreeMap<String, Thing> {
        let c = &self.honest;
        let mut tree = BTreeMap::new();
        let mut to_do = vec![(String::new(), ROOT)];
        while let Some((path, inode)) = to_do.pop() {
            let (attr, region) = (c.attr(inode).await.unwrap(), inode.ino.region());
            let Ok(Reply::Names(names)) = c.ask(region, Request::ListXattr { inode }).await else {
                panic!("extended attributes of {path}")
            };
            let mut xattrs = Vec::new();
            for name in names {
                let name = name.into_vec();
                let request = Request::GetXattr {
                    inode,
                    name: name.clone(),
                };
                let Ok(Reply::Bytes(value)) = c.ask(region, request).await else {
                    panic!("an extended attribute of {path}")
                };
                xattrs.push((name, value));
            }
            let content = match attr.kind {
                FileKind::File => c.read(inode).await.unwrap(),
                FileKind::Symlink => match c.ask(region, Request::ReadLink { inode }).await {
                    Ok(Reply::Target { target, .. }) => target,
                    other => panic!("{other:?}"),
                },
                FileKind::Directory => {
                    for name in c.names(inode).await.unwrap() {
                        to_do.push((format!("{path}/{name}"), c.find(inode, &name).await.unwrap()));
                    }
                    Vec::new()
                }
                _ => Vec::new(),
            };
            let content = (content.len(), hash(&content));
            tree.insert(path, Thing { attr, xattrs, content });
        }
        tree
    }

    pub async fn world(&self) -> World {
        let (mut usage, mut held) = (Vec::new(), Vec::new());
        for node in 0..3 {
            let Ok(Reply::Usage(of_node)) = self.honest.ask_node(node, Request::Usage).await else {
                panic!("usage of node {node}")
            };
            usage.push(of_node);
            let Ok(Reply::Json(status)) = self.honest.ask_node(node, Request::Status).await else {
                panic!("status of node {node}")
            };
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            let clients = status["sessions"].as_array().unwrap().iter();
            let clients = clients.filter(|session| session["node"] == false);
            let mut lines: Vec<String> = clients
                .map(|s| format!("{} {} {}", s["name"], s["opens"], s["delegated_pages"]))
                .collect();
            lines.sort();
            lines.push(format!("{} {}", status["locks"], status["transactions"]));
            held.push(lines);
        }
        World {
            tree: self.tree().await,
            usage,
            held,
        }
    }

    /// One request of the liar's to the node of the scene, as it is.
    pub async fn say(&self, request: Request) -> Answer {
        self.say_as(request, |_| ()).await
    }

    /// As `say`, with another envelope.
    pub async fn say_as(&self, request: Request, twist: impl FnOnce(&mut Call)) -> Answer {
        let link = self.liar.links.to(NodeId(self.node)).await.unwrap();
        let mut call = self.liar.links.make_call(Cred::Kernel, request);
        twist(&mut call);
        link.call(&call).await
    }

    /// One one-sided operation at the node of the scene.
    pub async fn touch(&self, verb: Verb<'_>) -> FabricError {
        let link = self.liar.links.to(NodeId(self.node)).await.unwrap();
        let result = link.rpc.queue_pair().execute(&mut [verb]).await;
        result.expect_err("the liar got away with it")
    }

    pub async fn segments(&self) -> SegmentMap {
        (*self.liar.links.segments(self.region, true).await.unwrap()).clone()
    }

    pub fn commit(&self, inode: InodeRef, runs: Vec<WriteRun>) -> Request {
        Request::Commit {
            inode,
            runs,
            append: false,
            crcs: Vec::new(),
            known: Tail::default(),
            want_pages: 0,
        }
    }

    /// Refused as not given to the liar, or not space at all.
    pub async fn refuses_commit(&self, what: &str, runs: Vec<WriteRun>) {
        for append in [false, true] {
            let mut request = self.commit(self.file, runs.clone());
            if let Request::Commit { append: at_end, .. } = &mut request {
                *at_end = append;
            }
            let answer = self.say(request).await;
            assert!(
                matches!(answer, Err(FsError::Invalid(_) | FsError::FileTooLarge)),
                "{what}: {answer:?}"
            );
        }
    }
}

/// Builds the scene, has the lies told, and compares.
pub fn refused(lies: impl AsyncFnOnce(&Cluster, &Scene)) {
    let options = ClusterOptions {
        seed: 61,
        pool_bytes: 16 << 20,
        segment_shift: Some(SHIFT),
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let scene = Scene::new(cluster).await;
        cluster.rest().await;
        let before = scene.world().await;
        assert!(before.tree.len() >= 6, "there is something to lose");
        lies(cluster, &scene).await;
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
        assert_eq!(scene.world().await, before);
        for node in 0..3 {
            cluster.crash(node).await;
            cluster.restart(node).await.unwrap();
        }
        cluster.sleep(Duration::from_millis(500)).await;
        assert_eq!(scene.tree().await, before.tree, "on the media too");
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

pub fn run_of(gpa: Gpa, offset: u64, len: u64) -> WriteRun {
    WriteRun { offset, len, gpa }
}

pub fn lock_of(owner: u64, mode: LockMode, range: LockRange) -> LockAsk {
    LockAsk {
        owner,
        kind: LockKind::Range,
        mode,
        range,
        pid: 1,
    }
}

pub fn is_invalid(answer: &Answer) -> bool {
    matches!(answer, Err(FsError::Invalid(_)))
}
