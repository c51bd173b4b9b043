//! A node, mounted in this process.
#![allow(dead_code)] // each test file uses a part

use polvo_client::Client;
use polvo_cluster::{Timeouts, initial_map};
use polvo_fabric::{Address, Identity, Role, Security};
use polvo_format::NodeId;
use polvo_fuse::{Mount, MountError, MountOptions};
use polvo_node::{Node, NodeConfig, Reactor, SystemClock, Transactions};
use polvo_pmem::Pmem;
use polvo_proto::{Cred, NodeInfo, RegionSet};
use polvo_region::{FormatParams, PoolIdentity, PoolSpace};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::LocalSet;

const CLUSTER: [u8; 16] = [7; 16];
pub const NODE: NodeId = NodeId(0);

/// A node, a colocated client and its mount. Ends in the order in which it is torn down by hand below.
pub struct Mounted {
    pub dir: PathBuf,
    pub client: Arc<Client>,
    pub mount: Option<Mount>,
    pub node: Arc<Node>,
    serving: Option<JoinHandle<()>>,
    _home: TempDir,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.take());
        self.client.shutdown();
        self.node.stop();
        if let Some(serving) = self.serving.take() {
            serving.join().expect("the node does not panic");
        }
    }
}

/// Starts everything, with a simulated pool; `None` where nothing can be mounted.
pub fn mounted(options: &str) -> Option<Mounted> {
    mounted_on(options, |_| Pmem::simulated(64 << 20))
}

/// The same, with a pool without checksums that is mapped, as pools are for users.
pub fn mounted_on_memory(options: &str) -> Option<Mounted> {
    mounted_on(options, |home| {
        Pmem::create(&home.join("pool"), 256 << 20, None).expect("there is room for a pool")
    })
}

fn mounted_on(options: &str, pool: impl FnOnce(&Path) -> Arc<Pmem>) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("not tested: mounting needs root and /dev/fuse");
        return None;
    }
    let home = tempfile::tempdir().expect("a directory for the test");
    let pmem = pool(home.path());
    let identity = PoolIdentity {
        cluster: CLUSTER,
        pool: [8; 16],
        node: NODE,
    };
    PoolSpace::format(
        &pmem,
        &FormatParams {
            identity,
            segment_shift: None,
            checksums: pmem.sim().is_some(),
        },
    )
    .expect("the pool is large enough");
    let address: Address = "tcp://127.0.0.1:0".parse().expect("an address");
    let info = NodeInfo {
        id: NODE,
        host: "here".to_owned(),
        addresses: vec![address.to_string()],
    };
    let secret = b"a secret for this test only".as_slice().into();
    let config = NodeConfig {
        id: NODE,
        identity: Identity {
            cluster: CLUSTER,
            secret,
            role: Role::Node(NODE.0),
            security: Security::default(),
        },
        listen: vec![address],
        map: initial_map(CLUSTER, vec![info], 3, &[RegionSet::default()]),
        timeouts: Timeouts::default(),
        transactions: Transactions::default(),
        name: "test".to_owned(),
        one_sided: polvo_node::OneSided::All,
        accept_older_pool: false,
        scrub: None,
        replace_after: None,
        reactors: std::num::NonZeroUsize::MIN,
    };
    let space = PoolSpace::open(pmem).expect("a fresh pool opens");
    let node = Node::open(space, config, Arc::new(SystemClock), &mut |_, _, _| {}).expect("a fresh pool opens");
    let (ready, is_ready) = channel();
    let served = node.clone();
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let serve = served.serve(Reactor::spawn, move |_| ready.send(()).expect("somebody waits"));
        LocalSet::new()
            .block_on(&runtime, serve)
            .expect("the node ends in good order");
    });
    is_ready.recv_timeout(Duration::from_secs(60)).expect("the node starts");
    let client = Client::internal(node.colocated(), "test".to_owned(), Cred::Kernel);
    client.start_maintenance();
    let dir = home.path().join("mnt");
    fs::create_dir(&dir).expect("writable");
    let mount = mount_at(&client, &dir, options).expect("mounted");
    let dir = mount.mountpoint().to_owned();
    Some(Mounted {
        dir,
        client,
        mount: Some(mount),
        node,
        serving: Some(serving),
        _home: home,
    })
}

pub fn mount_at(client: &Arc<Client>, dir: &Path, options: &str) -> Result<Mount, MountError> {
    let mut parsed = MountOptions::default();
    parsed.apply(options)?;
    Mount::new(client.clone(), dir, parsed)
}
