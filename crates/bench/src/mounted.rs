//! Mounts that are measured, each served by a process of its own, as mounts are: who measures serves nothing.
//!
//! Such a process is this program once more ([`part`]). It makes two mounts in a directory of its own, one for each [`Cache`], says
//! so, and serves them until its standard input ends: with the process that measures, however that ends.

use crate::BenchError;
use crate::crowd;
use crate::null_mount::{Lasts, NullMount};
use polvo_client::Client;
use polvo_cluster::Timeouts;
use polvo_fabric::Address;
use polvo_fuse::{Mount, MountOptions};
use polvo_testbed::cluster::{ClusterPlan, client_config, pool_len};
use polvo_testbed::on_thread::OnThread;
use polvo_testbed::part;
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is done in a process of its own.
pub const PART: &str = "mount";

/// A process that is told to end is waited for so long; then it is killed.
const ENDING: Duration = Duration::from_secs(20);

/// What the kernel keeps of a mount.
#[derive(Clone, Copy, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Cache {
    /// Nothing.
    None,
    /// What there are tokens of: the default.
    Strict,
}

const CACHES: [Cache; 2] = [Cache::None, Cache::Strict];

/// Who serves a mount.
#[derive(Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Server {
    /// The file system that does nothing.
    Null,
    /// The node in whose pool everything lies.
    Inside,
    /// A client of that node.
    Shm,
    /// The same.
    Tcp,
}

const SERVERS: [Server; 4] = [Server::Null, Server::Inside, Server::Shm, Server::Tcp];

impl Server {
    /// As it is called in rows.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A process that serves mounts. They are unmounted when it is dropped.
pub struct Serving {
    /// Who it is.
    pub server: Server,
    dir: PathBuf,
    process: Child,
    port: usize,
}

impl Serving {
    /// Starts it, with a new directory below `scratch`. A client finds its node there, too, and at that port.
    fn start(scratch: &Path, server: Server, name: &str, sizes: [usize; 2]) -> Result<Serving, BenchError> {
        let dir = scratch.join(name);
        std::fs::create_dir(&dir)?;
        let mut process = part::command(&dir, PART, &[server as usize, sizes[0], sizes[1]])?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // a key that ends the suite is not for it
            .process_group(0)
            .spawn()?;
        let said = process.stdout.take().expect("it is piped");
        let mut serving = Serving {
            server,
            dir,
            process,
            port: 0,
        };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let port = line.trim().parse();
        serving.port = port.map_err(|_| format!("what should serve {name} did not start"))?;
        Ok(serving)
    }

    /// Where its mount is of which the kernel keeps that.
    pub fn at(&self, cache: Cache) -> PathBuf {
        self.dir.join(<&str>::from(cache))
    }

    /// A directory of this mount's own there: all but null are mounts of one file system.
    fn own(&self, cache: Cache) -> PathBuf {
        let name = format!("{}-{}", self.server.name(), <&str>::from(cache));
        self.at(cache).join(name)
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) -> Result<(), BenchError> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let end = Instant::now() + ENDING;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.kill();
        for cache in CACHES {
            // what a process has left that did not end by itself
            let _ = unmount(self.at(cache), UnmountFlags::DETACH);
        }
    }
}

/// A cluster of one node, mounted by a colocated client and by remote ones; the file system that does nothing; and a directory beside
/// them that is not mounted.
pub struct Mounts {
    scratch: PathBuf,
    port: usize,
    /// The node behind its clients, after which it ends.
    serving: Vec<Serving>,
}

impl Mounts {
    /// Starts all of it below `scratch`, for files of `file_len` bytes.
    pub fn start(scratch: &Path, file_len: u64) -> Result<Mounts, BenchError> {
        let scratch = scratch.join("mounts");
        std::fs::create_dir(&scratch)?;
        let start = |server: Server, sizes| Serving::start(&scratch, server, server.name(), sizes);
        let null = start(Server::Null, [0; 2])?;
        let node = start(Server::Inside, [(pool_len(file_len) >> 20) as usize, 0])?;
        let port = node.port;
        let [shm, tcp] = [Server::Shm, Server::Tcp].map(|server| start(server, [0, port]));
        std::fs::create_dir(scratch.join("tmpfs"))?;
        let mounts = Mounts {
            port,
            serving: vec![tcp?, shm?, node, null],
            scratch,
        };
        for serving in &mounts.serving {
            CACHES
                .iter()
                .try_for_each(|cache| std::fs::create_dir(serving.own(*cache)))?;
        }
        Ok(mounts)
    }

    /// Another client of the node, over shm.
    pub fn one_more(&self, name: &str) -> Result<Serving, BenchError> {
        Serving::start(&self.scratch, Server::Shm, name, [0, self.port])
    }

    /// The directory beside the mounts.
    pub fn tmpfs(&self) -> PathBuf {
        self.scratch.join("tmpfs")
    }

    fn serving(&self, server: Server) -> &Serving {
        let mut all = self.serving.iter();
        all.find(|serving| serving.server == server).expect("all are served")
    }

    /// The root of a mount: of ours, everywhere the same directory.
    pub fn root(&self, server: Server, cache: Cache) -> PathBuf {
        self.serving(server).at(cache)
    }

    /// A directory that no other mount looks into.
    pub fn own(&self, server: Server, cache: Cache) -> PathBuf {
        self.serving(server).own(cache)
    }

    /// Those directories of ours, by name: colocated, over shm, over tcp.
    pub fn ours(&self, cache: Cache) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let ours = self
            .serving
            .iter()
            .rev()
            .filter(|serving| serving.server != Server::Null);
        ours.map(move |serving| (serving.server.name(), serving.own(cache)))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.serving.clear();
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// What a mount counts, from the extended attribute of its root.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
pub struct Counters {
    /// Tokens it has.
    pub tokens: u64,
    /// Tokens it was asked for.
    pub recalls: u64,
    /// Requests of the kernel.
    pub upcalls: BTreeMap<String, u64>,
}

impl Counters {
    /// Of the mount at `dir`.
    pub fn of(dir: &Path) -> Result<Counters, BenchError> {
        let mut json = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(dir, "user.polvo.counters", &mut json)?;
        Ok(serde_json::from_slice(&json[..len])?)
    }
}

/// The process's own part.
pub fn part(scratch: &Path, values: &[String]) -> Result<(), BenchError> {
    let server = *SERVERS.get(part::number(values, 0)?).ok_or("nobody serves that")?;
    let (pool_mib, port) = (part::number(values, 1)?, part::number(values, 2)?);
    match server {
        Server::Null => null(scratch),
        Server::Inside => node(scratch, (pool_mib as u64) << 20),
        Server::Shm => {
            let socket = scratch.with_file_name(Server::Inside.name()).join("node0.sock");
            outside(scratch, Address::Shm(socket))
        }
        Server::Tcp => outside(scratch, Address::Tcp(format!("127.0.0.1:{port}"))),
    }
}

fn null(scratch: &Path) -> Result<(), BenchError> {
    let _none = NullMount::on_fusedev(&scratch.join("none"), Lasts::NOT)?;
    let _strict = NullMount::on_fusedev(&scratch.join("strict"), Lasts::AS_BY_TOKENS)?;
    serve_until_told(0)
}

fn node(scratch: &Path, pool_len: u64) -> Result<(), BenchError> {
    let plan = ClusterPlan::one_node(scratch, pool_len);
    let node = plan.start()?.pop().ok_or("one node was asked for")?;
    crowd::touch(std::slice::from_ref(&node), pool_len)?;
    let Address::Tcp(address) = node.address("tcp")? else {
        return Err("a node listens at a port".into());
    };
    let port = address.rsplit(':').next().ok_or("an address has a port")?.parse()?;
    let served = polvo(scratch, port, || Ok(node.internal()));
    node.stop()?;
    served
}

fn outside(scratch: &Path, node: Address) -> Result<(), BenchError> {
    let config = client_config(node, Timeouts::default());
    polvo(
        scratch,
        0,
        || Ok(OnThread::new()?.run(Client::connect(config.clone()))?),
    )
}

fn polvo(scratch: &Path, port: usize, client: impl Fn() -> Result<Arc<Client>, BenchError>) -> Result<(), BenchError> {
    let mut mounts = Vec::new();
    for cache in CACHES {
        let (client, dir) = (client()?, scratch.join(<&str>::from(cache)));
        client.start_maintenance();
        std::fs::create_dir(&dir)?;
        let mut options = MountOptions::default();
        options.apply(&format!("cache={}", <&str>::from(cache)))?;
        mounts.push((Mount::new(client.clone(), &dir, options)?, client));
    }
    serve_until_told(port)?;
    for (mount, client) in mounts {
        mount.unmount(true)?;
        client.shutdown();
    }
    Ok(())
}

/// Says that everything is there, and waits until the standard input ends.
fn serve_until_told(port: usize) -> Result<(), BenchError> {
    let mut out = std::io::stdout();
    writeln!(out, "{port}")?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
