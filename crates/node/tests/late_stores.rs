//! A peer on the same host may have the pool mapped and have begun to store into pages that it was given, when its node dies
//! and is started anew: nothing stops the store. So nobody else may be given those pages while that can happen.

use polvo_cluster::{Links, Timeouts, initial_map};
use polvo_fabric::{Identity, Role, Security};
use polvo_format::{Epoch, FileKind, Generation, Ino, NodeId, RegionId, SessionId, Tail};
use polvo_node::{Node, NodeConfig, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::*;
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

const CLUSTER: [u8; 16] = [9; 16];
const REGION: RegionId = RegionId(0);
const PAGE: u64 = 4096;

fn format(path: &Path) {
    let pmem = Pmem::create(path, 16 << 20, None).unwrap();
    let identity = PoolIdentity {
        cluster: CLUSTER,
        pool: [7; 16],
        node: NodeId(0),
    };
    let params = FormatParams {
        identity,
        segment_shift: Some(18),
        checksums: true,
    };
    PoolSpace::format(&pmem, &params).unwrap();
}

/// One incarnation of the node, and a colocated client.
struct Life {
    pmem: Arc<Pmem>,
    node: Arc<Node>,
    links: Rc<Links>,
    session: SessionId,
    requests: Cell<u64>,
}

impl Life {
    async fn begin(path: &Path, session: u64) -> Life {
        let pmem = Pmem::open(path, None).unwrap();
        let info = NodeInfo {
            id: NodeId(0),
            host: String::new(),
            addresses: vec![],
        };
        let config = NodeConfig {
            id: NodeId(0),
            identity: Identity {
                cluster: CLUSTER,
                secret: b"secret".as_slice().into(),
                role: Role::Node(0),
                security: Security::default(),
            },
            listen: vec![],
            map: initial_map(CLUSTER, vec![info], 1, &[RegionSet::default()]),
            timeouts: Timeouts::default(),
            transactions: Transactions::default(),
            name: "node 0".into(),
            one_sided: polvo_node::OneSided::All,
            accept_older_pool: false,
            scrub: None,
            replace_after: None,
            reactors: std::num::NonZeroUsize::MIN,
        };
        let space = PoolSpace::open(pmem.clone()).unwrap();
        let node = Node::open(space, config, Arc::new(SystemClock), &mut |_, _, _| {}).unwrap();
        let incarnation = Life {
            pmem,
            links: node.new_links(),
            node,
            session: SessionId(session),
            requests: Cell::new(0),
        };
        let (version, name, home, fence) = (PROTOCOL_VERSION, "client".into(), None, 0);
        incarnation
            .ask(Request::Attach {
                version,
                name,
                home,
                fence,
                syncs: true,
            })
            .await
            .unwrap();
        incarnation
    }

    async fn ask(&self, request: Request) -> Answer {
        self.requests.set(self.requests.get() + 1);
        let call = Call {
            again: false,
            session: self.session,
            request_id: self.requests.get(),
            epoch: Epoch(1),
            cred: Cred::Kernel,
            request,
        };
        self.node.handle(&self.links, call).await
    }

    async fn delegate(&self, pages: u32) -> Result<Vec<PageRun>, FsError> {
        match self.ask(Request::Delegate { region: REGION, pages }).await? {
            Reply::Space(runs) => Ok(runs),
            other => panic!("{other:?}"),
        }
    }

    /// All that there is.
    async fn delegate_all(&self) -> Vec<PageRun> {
        let mut all = Vec::new();
        loop {
            match self.delegate(64).await {
                Ok(runs) => all.extend(runs),
                Err(FsError::NoSpace | FsError::HeldBack) => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A file whose bytes lie in pages that were given just now.
    async fn write(&self, bytes: &[u8]) -> PageRun {
        let file = NewFile {
            kind: FileKind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            umask: 0,
            xattrs: Vec::new(),
        };
        let create = Request::Create {
            dir: InodeRef {
                ino: Ino::ROOT,
                generation: Generation(1),
            },
            name: b"f".to_vec(),
            file,
            open: false,
        };
        let Ok(Reply::Made(made)) = self.ask(create).await else {
            panic!("no file")
        };
        let run = self.delegate((bytes.len() as u64 / PAGE) as u32).await.unwrap()[0];
        let here = self.node.colocated();
        let at = here.locate(run.gpa, bytes.len()).unwrap();
        here.pool().write_streaming(at, bytes);
        here.pool().fence();
        let commit = Request::Commit {
            inode: InodeRef {
                ino: made.attr.ino,
                generation: made.attr.generation,
            },
            runs: vec![WriteRun {
                offset: 0,
                len: bytes.len() as u64,
                gpa: run.gpa,
            }],
            crcs: Vec::new(),
            append: false,
            known: Tail::default(),
            want_pages: 0,
        };
        self.ask(commit).await.unwrap();
        run
    }

    async fn findings(&self) -> Vec<String> {
        match self
            .ask(Request::Check {
                region: REGION,
                page: 0,
            })
            .await
        {
            Ok(Reply::Facts(facts)) => facts.findings,
            other => panic!("{other:?}"),
        }
    }

    /// Where pages lie in the pool: first byte and the one behind the last.
    async fn places(&self, runs: &[PageRun]) -> Vec<(u64, u64)> {
        let Ok(Reply::Segments(map)) = self
            .ask(Request::Segments {
                region: REGION,
                from: 0,
            })
            .await
        else {
            panic!("no segments")
        };
        let place = |run: &PageRun| {
            let (place, inner) = map.locate(run.gpa.offset()).unwrap();
            let start = place.pool_offset + inner;
            (start, start + u64::from(run.pages) * PAGE)
        };
        runs.iter().map(place).collect()
    }

    /// A peer that maps the pool, as over `shm`.
    fn peer(&self) -> Arc<Pmem> {
        let fd = self.pmem.fd().unwrap().try_clone_to_owned().unwrap();
        let (len, persistence, medium) = (self.pmem.len(), self.pmem.persistence(), self.pmem.medium());
        Pmem::from_fd(fd, len, persistence, medium).unwrap()
    }
}

fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.0 < b.1 && b.0 < a.1))
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_run_before_are_not_given_out_while_a_peer_of_it_can_store_to_them() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    format(&path);

    let first = Life::begin(&path, 1).await;
    let before = first.places(&first.delegate(4).await.unwrap()).await;
    let at = before[0].0;
    let peer = first.peer();
    drop(first);

    let second = Life::begin(&path, 2).await;
    let bytes = [0x5a; 4 * PAGE as usize];
    let run = second.write(&bytes).await;
    peer.write(at, &[0xee; 4 * PAGE as usize]); // the store that was under way when the node died
    let mut read = [0; 4 * PAGE as usize];
    let here = second.node.colocated();
    let at = here.locate(run.gpa, read.len()).unwrap();
    here.pool().read(at, &mut read);
    assert!(read == bytes, "a late store has hit somebody else's file");
    let all = second.places(&second.delegate_all().await).await;
    assert!(all.len() > 10 && !overlap(&all, &before));
    assert_eq!(second.findings().await, Vec::<String>::new());

    drop(peer);
    let rest = second.places(&second.delegate_all().await).await;
    assert!(
        overlap(&rest, &before),
        "given out when nobody has the pool mapped since before"
    );
    assert_eq!(second.findings().await, Vec::<String>::new());
}

/// A run that finds a peer of the one before, and the places of pages that the one before had given out.
async fn after_a_peer(path: &std::path::Path) -> (Life, Arc<Pmem>, Vec<(u64, u64)>) {
    format(path);
    let first = Life::begin(path, 1).await;
    let before = first.places(&first.delegate(4).await.unwrap()).await;
    let peer = first.peer();
    drop(first);
    (Life::begin(path, 2).await, peer, before)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_unmaps_holds_pages_back_for_a_lease_only() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (second, peer, before) = after_a_peer(&dir.path().join("pool")).await;
    assert!(!overlap(&second.places(&second.delegate_all().await).await, &before));
    tokio::time::advance(Timeouts::default().lease).await;
    assert!(overlap(&second.places(&second.delegate_all().await).await, &before));
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn without_such_peers_nothing_is_held_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    format(&path);
    let first = Life::begin(&path, 1).await;
    let before = first.places(&first.delegate(4).await.unwrap()).await;
    drop(first);
    let second = Life::begin(&path, 2).await;
    assert!(overlap(&second.places(&second.delegate_all().await).await, &before));
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_space_is_told_that_some_is_held_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (second, peer, before) = after_a_peer(&dir.path().join("pool")).await;
    second.delegate_all().await;
    assert_eq!(second.delegate(4).await, Err(FsError::HeldBack));
    drop(peer);
    let runs = second.delegate(4).await.expect("the peer has let go of the pool");
    assert!(overlap(&second.places(&runs).await, &before));
    second.delegate_all().await;
    assert_eq!(second.delegate(4).await, Err(FsError::NoSpace));
}
