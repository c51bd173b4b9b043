//! A caller that speaks requests: what the client library does for files, this does for tests, one request at a time.
#![allow(dead_code)] // each test file uses a part

use polvo_cluster::{Links, RegionVerb};
use polvo_format::{Attr, FileKind, Generation, Ino, NodeId, RegionId, Tail};
use polvo_node::Node;
use polvo_node::sim::Cluster;
use polvo_proto::*;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The root directory.
pub const ROOT: InodeRef = InodeRef {
    ino: Ino::ROOT,
    generation: Generation(1),
};

/// What was done has come to the mirrors, and they are what the regions are.
pub async fn settle(cluster: &Cluster) {
    cluster.rest().await;
    cluster.mirrored().await;
    cluster.sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.check(), Vec::<String>::new());
    cluster.compare_mirrors().unwrap();
}

/// Nodes that others take the place of within so long, each started again.
pub async fn deposed_within(cluster: &mut Cluster, time: Duration) -> Vec<u16> {
    const LOOK: Duration = Duration::from_millis(100);
    let mut deposed = Vec::new();
    for _ in 0..time.as_millis() / LOOK.as_millis() {
        cluster.sleep(LOOK).await;
        while let Some(node) = cluster.deposed() {
            deposed.push(node);
            assert!(matches!(cluster.ended(node).await, Err(FsError::Deposed { .. })));
            cluster.restart(node).await.unwrap();
        }
    }
    deposed
}

pub fn inode_of(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

pub fn new_file(kind: FileKind, mode: u32) -> NewFile {
    NewFile {
        kind,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: vec![],
        umask: 0,
        xattrs: Vec::new(),
    }
}

pub fn user(uid: u32) -> Cred {
    Cred::User {
        uid,
        gid: uid,
        groups: vec![],
    }
}

/// A client session that makes requests on behalf of somebody.
#[derive(Clone)]
pub struct Caller {
    pub links: Rc<Links>,
    pub cred: Cred,
    /// The node that it is colocated with, if it is.
    colocated: Option<Arc<Node>>,
}

impl Caller {
    pub fn new(cluster: &Cluster, name: &str) -> Caller {
        Caller {
            links: cluster.client(name),
            cred: Cred::Kernel,
            colocated: None,
        }
    }

    /// A thread of the node's own process, which calls it directly.
    pub async fn colocated(cluster: &Cluster, name: &str, node: u16) -> Caller {
        let node = cluster.node(node).clone();
        let links = node.client_context(cluster.next_session(), name.into()).links();
        let attach = ask::Attach {
            version: PROTOCOL_VERSION,
            name: name.into(),
            home: Some(node.id()),
            fence: 0,
            syncs: true,
        };
        let answer = node.handle(&links, links.make_call(Cred::Kernel, attach)).await;
        ask::Attach::answered(answer, node.id()).unwrap();
        Caller {
            links,
            cred: Cred::Kernel,
            colocated: Some(node),
        }
    }

    pub fn at_home(cluster: &Cluster, name: &str, home: u16) -> Caller {
        Caller {
            links: cluster.client_at(name, Some(NodeId(home))),
            cred: Cred::Kernel,
            colocated: None,
        }
    }

    /// The same session, other credentials.
    pub fn as_user(&self, cred: Cred) -> Caller {
        Caller { cred, ..self.clone() }
    }

    pub async fn ask<A: Ask>(&self, region: RegionId, ask: A) -> Result<A::Answer, FsError> {
        if let Some(node) = &self.colocated
            && self.links.primary(region) == Ok(node.id())
        {
            let call = self.links.make_call(self.cred.clone(), ask);
            return A::answered(node.handle(&self.links, call).await, node.id());
        }
        self.links.call_region(region, self.cred.clone(), ask).await
    }

    pub async fn ask_node<A: Ask>(&self, node: u16, ask: A) -> Result<A::Answer, FsError> {
        self.links.call_node(NodeId(node), self.cred.clone(), ask).await
    }

    pub async fn make(&self, dir: InodeRef, name: &str, file: NewFile, open: bool) -> Result<InodeRef, FsError> {
        let request = ask::Create {
            dir,
            name: name.into(),
            file,
            open,
        };
        let made = self.ask(dir.ino.region(), request).await?;
        Ok(inode_of(&made.attr))
    }

    pub async fn create(&self, dir: InodeRef, name: &str) -> Result<InodeRef, FsError> {
        self.make(dir, name, new_file(FileKind::File, 0o644), false).await
    }

    pub async fn mkdir(&self, dir: InodeRef, name: &str) -> Result<InodeRef, FsError> {
        self.make(dir, name, new_file(FileKind::Directory, 0o755), false).await
    }

    pub async fn find(&self, dir: InodeRef, name: &str) -> Result<InodeRef, FsError> {
        let lookup = ask::Lookup { dir, name: name.into() };
        Ok(self.ask(dir.ino.region(), lookup).await?.target)
    }

    pub async fn attr(&self, inode: InodeRef) -> Result<Attr, FsError> {
        let request = ask::GetAttr {
            ino: inode.ino,
            generation: Some(inode.generation),
        };
        Ok(self.ask(inode.ino.region(), request).await?.attr)
    }

    pub async fn set(&self, inode: InodeRef, set: SetAttr) -> Result<Attr, FsError> {
        Ok(self.ask(inode.ino.region(), ask::SetAttr { inode, set }).await?.attr)
    }

    pub async fn unlink(&self, dir: InodeRef, name: &str) -> Result<(), FsError> {
        let ask = ask::Unlink { dir, name: name.into() };
        self.ask(dir.ino.region(), ask).await.map(drop)
    }

    pub async fn rmdir(&self, dir: InodeRef, name: &str) -> Result<(), FsError> {
        let ask = ask::Rmdir { dir, name: name.into() };
        self.ask(dir.ino.region(), ask).await.map(drop)
    }

    pub async fn link(&self, inode: InodeRef, dir: InodeRef, name: &str) -> Result<Attr, FsError> {
        let name = name.into();
        let linked = self.ask(dir.ino.region(), ask::Link { inode, dir, name }).await?;
        Ok(linked.attr)
    }

    pub async fn rename_with(
        &self,
        old_dir: InodeRef,
        old: &str,
        new_dir: InodeRef,
        new: &str,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let (old_name, new_name) = (old.into(), new.into());
        let request = ask::Rename {
            old_dir,
            old_name,
            new_dir,
            new_name,
            mode,
        };
        self.ask(new_dir.ino.region(), request).await.map(drop)
    }

    pub async fn rename(&self, old_dir: InodeRef, old: &str, new_dir: InodeRef, new: &str) -> Result<(), FsError> {
        self.rename_with(old_dir, old, new_dir, new, RenameMode::Replace).await
    }

    pub async fn names(&self, dir: InodeRef) -> Result<Vec<String>, FsError> {
        let mut names = Vec::new();
        let mut after = 0;
        loop {
            let page = self
                .ask(dir.ino.region(), ask::ReadDir { dir, after, max: 1000 })
                .await?;
            let Some(last) = page.entries.last() else { break };
            after = last.cookie;
            names.extend(page.entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()));
        }
        names.sort();
        Ok(names)
    }

    pub async fn open(&self, inode: InodeRef) -> Result<FileMap, FsError> {
        self.ask(inode.ino.region(), ask::Open { inode }).await
    }

    /// Opens to write; whether the caller may map the file shared and writable.
    pub async fn may_map(&self, inode: InodeRef, claim: MapClaim, number: u64) -> Result<bool, FsError> {
        let request = ask::OpenToWrite {
            inode,
            claim,
            number,
            want_map: false,
        };
        let opened = self.ask(inode.ino.region(), request).await?;
        assert_eq!(opened.map, None);
        Ok(opened.may_map)
    }

    pub async fn end_writing(&self, inode: InodeRef, number: u64) -> Result<(), FsError> {
        let inodes = vec![(inode, number)];
        self.ask(inode.ino.region(), ask::EndWriting { inodes }).await
    }

    pub async fn release(&self, inode: InodeRef) -> Result<(), FsError> {
        self.ask(inode.ino.region(), ask::Release { inodes: vec![inode] }).await
    }

    /// Eager write.
    pub async fn write(&self, inode: InodeRef, offset: u64, bytes: &[u8]) -> Result<Written, FsError> {
        let (bytes, known) = (bytes.to_vec(), Tail::default());
        let request = ask::Write {
            inode,
            offset,
            append: false,
            known,
            bytes,
        };
        written(self.ask(inode.ino.region(), request).await)
    }

    pub async fn delegate(&self, region: RegionId, pages: u32) -> Result<Vec<PageRun>, FsError> {
        self.ask(region, ask::Delegate { region, pages }).await
    }

    /// Client-active write: bytes go to delegated space one-sided, then the log commit names them.
    pub async fn write_active(&self, inode: InodeRef, offset: u64, bytes: &[u8]) -> Result<Written, FsError> {
        let region = inode.ino.region();
        let mut rest = bytes;
        let mut runs = Vec::new();
        while !rest.is_empty() {
            let space = self.delegate(region, rest.len().div_ceil(4096) as u32).await?;
            for run in space {
                let (now, later) = rest.split_at(rest.len().min(run.pages as usize * 4096));
                if now.is_empty() {
                    break;
                }
                let mut ops = [RegionVerb::WriteData {
                    at: run.gpa,
                    bytes: now,
                }];
                self.links.one_sided(region, &mut ops).await?;
                let at = offset + (bytes.len() - rest.len()) as u64;
                runs.push(WriteRun {
                    offset: at,
                    len: now.len() as u64,
                    gpa: run.gpa,
                });
                rest = later;
            }
        }
        let request = ask::Commit {
            inode,
            runs,
            append: false,
            crcs: Vec::new(),
            known: Tail::default(),
            want_pages: 0,
        };
        written(self.ask(region, request).await)
    }

    /// Client-active read of a whole file.
    pub async fn read(&self, inode: InodeRef) -> Result<Vec<u8>, FsError> {
        let region = inode.ino.region();
        let mut bytes = Vec::new();
        let mut from = 0;
        loop {
            let map = self.ask(region, ask::Extents { inode, from }).await?;
            bytes.resize(map.attr.size as usize, 0);
            for extent in &map.extents {
                let into = &mut bytes[extent.offset as usize..][..extent.len as usize];
                self.links
                    .read(region, &mut [RegionVerb::Read { at: extent.gpa, into }])
                    .await?;
            }
            match map.extents.last() {
                Some(last) if map.more => from = last.offset + last.len,
                _ => return Ok(bytes),
            }
        }
    }

    /// A directory on a node other than `elsewhere`, in the root, so that names in it are coordinated there.
    pub async fn directory_at(&self, cluster: &Cluster, node: u16, prefix: &str) -> InodeRef {
        for i in 0..200 {
            let dir = match self.mkdir(ROOT, &format!("{prefix}{i}")).await {
                Err(FsError::Exists) => continue,
                made => made.unwrap(),
            };
            if primary(cluster, dir) == node {
                return dir;
            }
            self.rmdir(ROOT, &format!("{prefix}{i}")).await.unwrap();
        }
        panic!("no directory came to node {node}");
    }

    /// A file in `dir` on a given node.
    pub async fn file_at(&self, cluster: &Cluster, dir: InodeRef, node: u16, prefix: &str) -> (String, InodeRef) {
        for i in 0..200 {
            let name = format!("{prefix}{i}");
            let file = self.create(dir, &name).await.unwrap();
            if primary(cluster, file) == node {
                return (name, file);
            }
            self.unlink(dir, &name).await.unwrap();
        }
        panic!("no file came to node {node}");
    }
}

/// The node that serves an inode.
pub fn primary(cluster: &Cluster, inode: InodeRef) -> u16 {
    cluster.map().primary(inode.ino.region()).unwrap().0
}

fn written(answer: Result<WriteAnswer, FsError>) -> Result<Written, FsError> {
    match answer? {
        WriteAnswer::Written(written) => Ok(written),
        other => panic!("{other:?}"),
    }
}

/// Deterministic bytes.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// A little deterministic generator for random tests.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}
