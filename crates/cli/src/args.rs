//! The command line of `polvo`.

use crate::ClusterId;
use crate::size::Size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use polvo_client::{Thresholds, Transfers};
use polvo_fabric::{Address, Security};
use polvo_proto::{Durability, SetWish};
use std::ffi::OsString;
use std::path::PathBuf;

const MAIN_HELP: &str = "\
A cluster is named in one of three ways:
  polvo://HOST:PORT/PATH   the address of one of its nodes; the secret comes from --secret-file
  --cluster-dir DIR        a directory with a cluster.toml, as `polvo up` makes one
  nothing                  ./.polvo, then /etc/polvo

Examples:
  polvo up --nodes 3 --dir .polvo --mount ./mnt
  polvo status
  polvo put -r ~/data /data
  polvo ls -l /data
  polvo mount polvo://node1:7400/ /mnt --secret-file ~/secret
  polvo down --dir .polvo

Exit codes: 0 done; 1 something failed (stderr says what); 2 wrong command line or configuration file.
`status` ends with 1 when a node does not answer and 8 when regions lack replicas, `fsck` like fsck(8): 0 clean, 1 repaired, 4 errors left, 8 failed.";

/// PolvoFS: one POSIX file system out of the memory of many machines.
#[derive(Parser, Debug)]
#[command(name = "polvo", version, after_long_help = MAIN_HELP, max_term_width = 100)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a development cluster: nodes, pools and a mount on this machine
    #[command(after_long_help = UP_HELP)]
    Up(UpArgs),
    /// Stop a development cluster and remove what `up` made
    Down(DownArgs),
    /// Make a pool
    #[command(after_long_help = FORMAT_HELP)]
    Format(FormatArgs),
    /// Mount a cluster at a directory
    #[command(after_long_help = MOUNT_HELP)]
    Mount(MountArgs),
    /// Unmount a directory
    Umount(UmountArgs),
    /// Show nodes, regions, space, sessions, providers and persistence
    #[command(after_long_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Show the space of each node
    Df(DfArgs),
    /// Check the consistency of a running cluster, or check and repair the pools of a stopped one
    #[command(after_long_help = FSCK_HELP)]
    Fsck(FsckArgs),
    /// Compare all file data of a running cluster with its checksums
    #[command(after_long_help = SCRUB_HELP)]
    Scrub(ScrubArgs),
    /// Have all nodes keep and serve equally much, after nodes were away or added, or one of them serve nothing
    #[command(after_long_help = BALANCE_HELP)]
    Balance(BalanceArgs),
    /// Change which nodes the cluster has
    #[command(subcommand, disable_help_subcommand = true)]
    Node(NodeCommand),
    /// List directories
    Ls(LsArgs),
    /// Write files to standard output
    Cat(CatArgs),
    /// Copy files into the cluster
    #[command(after_long_help = COPY_HELP)]
    Put(PutArgs),
    /// Copy files out of the cluster
    #[command(after_long_help = COPY_HELP)]
    Get(GetArgs),
    /// Remove files and directories
    Rm(RmArgs),
    /// Make directories
    Mkdir(MkdirArgs),
    /// Set, or show, at how many nodes and at which a directory's new files are kept
    #[command(after_long_help = SET_HELP)]
    Set(SetArgs),
    /// Rename or move files and directories
    Mv(MvArgs),
    /// Show the attributes of files
    Stat(StatArgs),
    /// Measure this machine and PolvoFS on it, or any mounted file system (`polvo bench --help` for what there is)
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
    /// Print the completions of a shell, to be stored where it looks for them
    #[command(after_long_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Write the manual pages of all programs into a directory
    #[command(after_long_help = MAN_HELP)]
    Man(ManArgs),
}

/// Provider of the fabric.
#[derive(ValueEnum, strum::Display, Clone, Copy, PartialEq, Eq, Debug)]
#[strum(serialize_all = "lowercase")]
pub enum Provider {
    /// Shared memory: peers on this machine
    Shm,
    /// TCP
    Tcp,
}

/// Who moves file data between a client and a node.
#[derive(ValueEnum, strum::Display, Clone, Copy, PartialEq, Eq, Debug)]
#[strum(serialize_all = "lowercase")]
pub enum Mover {
    /// The client, by one-sided access, at nodes that give it; else the node
    Client,
    /// The node
    Server,
}

impl Mover {
    /// As the client library calls it.
    pub fn transfers(self) -> Transfers {
        match self {
            Mover::Client => Transfers::Client,
            Mover::Server => Transfers::Server(Thresholds::default()),
        }
    }
}

/// Which cluster, and how to get at it.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Directory with a cluster.toml [default: ./.polvo, then /etc/polvo]
    #[arg(long, value_name = "DIR", env = "POLVO_CLUSTER_DIR")]
    pub cluster_dir: Option<PathBuf>,
    /// File with the cluster's secret: SECRET or CLUSTER-ID:SECRET
    #[arg(long, value_name = "FILE", env = "POLVO_SECRET_FILE")]
    pub secret_file: Option<PathBuf>,
    /// Identity of the cluster, when neither the secret file nor a cluster.toml names it
    #[arg(long, value_name = "UUID")]
    pub cluster: Option<ClusterId>,
    /// Talk over this only [default: shm to nodes on this machine, tcp to others]
    #[arg(long, value_enum)]
    pub provider: Option<Provider>,
    /// Who moves file data [default: client]
    #[arg(long, value_enum)]
    pub transfers: Option<Mover>,
    /// What becomes of bytes that travel over tcp: none, auth (changed ones end the connection) or encrypt; the stronger of this and
    /// what the node wants [default: auth]
    #[arg(long, value_name = "LEVEL")]
    pub security: Option<Security>,
    /// Compare all data that is read with its checksums; what is damaged is an error
    #[arg(long)]
    pub verify: bool,
}

const UP_HELP: &str = "\
Any number of clusters may run side by side, each in a directory of its own with its configuration files, logs,
secret and process ids. `up` in the directory of a cluster that was stopped (or whose nodes died) starts the missing
nodes on the same pools. With a larger number of --nodes it adds some to the cluster, while that runs.

Examples:
  polvo up --dir .polvo --mount ./mnt                  three nodes of 1 GiB over shm
  polvo up --nodes 5 --size 256M --provider tcp --dir /tmp/five
  polvo up --nodes 5 --replicas 3 --dir /tmp/thrice    each file at three nodes: any two of the five may die
  polvo up --durability async --dir /tmp/ahead         copies follow within a second, nobody waits for them
  polvo up --set replicas=1 --dir /tmp/both            files at two nodes, and at one in directories of `polvo set DIR replicas=1`
  polvo up --dir .polvo                                again, after a kill or `down --keep`
  polvo up --nodes 4 --dir .polvo                      a node more; then `polvo balance` gives it its share
  polvo down --dir .polvo";

/// `polvo up`
#[derive(Args, Debug, Clone)]
pub struct UpArgs {
    /// Directory of the cluster; made when it is not there
    #[arg(long, value_name = "DIR", default_value = ".polvo")]
    pub dir: PathBuf,
    /// Number of nodes [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Option<u16>,
    /// Size of each node's pool [default: 1G]
    #[arg(long)]
    pub size: Option<Size>,
    /// How nodes and clients talk when both ways are there [default: shm]
    #[arg(long, value_enum)]
    pub provider: Option<Provider>,
    /// Mount the cluster here, inside node 0; the directory is made when it is not there
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Options of the mount, comma-separated
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    pub mount_options: Option<String>,
    /// Regions of each set a node [default: one for each 64 MiB of its pool, with copies one for each 64 MiB of files, at least 4 (with --set, 1), at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub regions_per_node: Option<u16>,
    /// Keep each region at so many nodes [default: 2 of three nodes or more, else 1]: nothing is answered before all of them have it, and all but one of them may
    /// die; no more than there are nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub replicas: Option<u8>,
    /// Make the copies of a node that has been away for so many seconds at other nodes, where there are enough; 0: never [default: 600]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub replace_after: Option<u64>,
    /// When a change of a region that is kept at several nodes is answered: sync-flush (all of them have it, flushed), sync (all of them
    /// have it) or async (the node that serves it has it; when that dies, the last second's changes may be lost that were not synced)
    /// [default: sync]
    #[arg(long, value_name = "MODE")]
    pub durability: Option<Durability>,
    /// Regions of a further set, for the directories that `polvo set` puts there: replicas=N, durability=MODE or both with a comma between,
    /// else as by default; may be given several times
    #[arg(long = "set", value_name = "SET")]
    pub sets: Vec<SetWish>,
    /// Threads of a node that serve connections [default: its share of the cores, at most 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub reactors: Option<u16>,
    /// What the pools lie on [default: tmpfs if it has room, else file]
    #[arg(long, value_enum, conflicts_with = "pool_dir")]
    pub medium: Option<DevMedium>,
    /// Directory for the pools
    #[arg(long, value_name = "DIR")]
    pub pool_dir: Option<PathBuf>,
    /// How stores become durable: auto, clwb, clflushopt, clflush or none
    #[arg(long, value_name = "MODE")]
    pub persistence: Option<String>,
    /// Pools without checksums of file data
    #[arg(long)]
    pub no_checksums: bool,
    /// Log level of the nodes
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Longest wait for the nodes, in seconds; a new cluster's copies are then waited for 10 s at most
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,
}

/// What a development cluster's pools lie on.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevMedium {
    /// /dev/shm: gone after a reboot
    Tmpfs,
    /// Files in the cluster's directory
    File,
}

/// `polvo down`
#[derive(Args, Debug, Clone)]
pub struct DownArgs {
    /// Directory of the cluster
    #[arg(long, value_name = "DIR", default_value = ".polvo")]
    pub dir: PathBuf,
    /// Leave pools and configuration, so that `up` can go on with them
    #[arg(long)]
    pub keep: bool,
    /// Time for a clean end, in seconds; then the nodes are killed
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub wait: u64,
}

const FORMAT_HELP: &str = "\
A device is taken whole; for a file that is not there yet give its --size. What the pool held is destroyed, so
anything that is not blank is refused without --force.

Examples:
  polvo format --config /etc/polvo/polvod.toml
  polvo format --config /etc/polvo/polvod.toml --size 64G
  polvo format --pool /dev/dax0.0 --cluster 3f3f3f3f-3f3f-4f3f-bf3f-3f3f3f3f3f3f --node 0";

/// `polvo format`
#[derive(Args, Debug, Clone)]
pub struct FormatArgs {
    /// The configuration of the node: names pool, cluster and node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pool", "node", "cluster", "secret_file"])]
    pub config: Option<PathBuf>,
    /// The pool: a device or a file
    #[arg(long, value_name = "PATH")]
    pub pool: Option<PathBuf>,
    /// Identity of the cluster
    #[arg(long, value_name = "UUID")]
    pub cluster: Option<ClusterId>,
    /// A secret file that names the cluster
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Number of the node
    #[arg(long, value_name = "N")]
    pub node: Option<u16>,
    /// Length of the pool, such as 64G
    #[arg(long)]
    pub size: Option<Size>,
    /// How stores become durable: auto, clwb, clflushopt, clflush or none
    #[arg(long, value_name = "MODE")]
    pub persistence: Option<String>,
    /// Without checksums of file data
    #[arg(long)]
    pub no_checksums: bool,
    /// Destroy what is there
    #[arg(long)]
    pub force: bool,
}

const MOUNT_HELP: &str = "\
Returns when the file system is there; a process of its own serves it until it is unmounted. By way of mount(8):
mount -t polvo polvo://node1:7400/ /mnt -o secret_file=/etc/polvo/secret
which begins with suid,dev for root, as with any file system; `polvo mount` begins with nosuid,nodev.
mount -o remount,ro /mnt (rw, suid, dev, exec likewise) changes a mount that is there.

Options besides those of mount(8) (ro, suid, dev, noexec, noatime, nodiratime, strictatime,
allow_other, ...):
  acl              access control lists
  cache=strict     the kernel keeps attributes and names, and is told before others change them (default)
  cache=pages      also bytes of files that are opened for reading alone: for data that is read again and again
  cache=none       it asks each time
  mmap=one         one mount at a time may map a file shared and writable (default); mmap=shared: all; mmap=private: none
  threads=N        threads that serve the kernel
  secret_file=FILE  cluster_dir=DIR  cluster=UUID  provider=shm|tcp  security=none|auth|encrypt
  transfers=client  file data goes by one-sided access of the client, at nodes that give it (default)
  transfers=server  the nodes move it
  verify   compare all data that is read with its checksums; what is damaged is EIO
  hard     while a node is away, operations on its files wait for it, for up to `away_ms` of cluster.toml (default 10 s)
           from when that was noticed, and then fail with EIO until it is back (default)
  soft     they fail with EIO at once
  nolock   locks are this mount's own

Examples:
  polvo mount polvo://node1:7400/ /mnt --secret-file /etc/polvo/secret
  polvo mount --cluster-dir .polvo --provider tcp / ./mnt2
  polvo umount ./mnt2";

/// `polvo mount`
#[derive(Args, Debug, Clone)]
pub struct MountArgs {
    /// What to mount: polvo://HOST:PORT/, or / for the cluster of --cluster-dir
    pub source: OsString,
    /// Mount point: an empty directory
    pub dir: PathBuf,
    /// Mount options, comma-separated
    #[arg(short = 'o', long, value_name = "OPTIONS", action = clap::ArgAction::Append, value_delimiter = ',')]
    pub options: Vec<String>,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// Started in the background by another `polvo mount`
    #[arg(long, hide = true)]
    pub detached: bool,
    /// What the names of its files begin with, as the one that started it says
    #[arg(long, hide = true, value_name = "PATH")]
    pub files: Option<PathBuf>,
    /// Longest wait for the mount, in seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub wait: u64,
    /// Where the log goes [default: a file beside the process id, removed after a clean end]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo umount`
#[derive(Args, Debug, Clone)]
pub struct UmountArgs {
    /// Mount point
    pub dir: PathBuf,
    /// Even when files are open there: programs that use it get errors from then on
    #[arg(short, long)]
    pub force: bool,
}

const STATUS_HELP: &str = "\
With --mount the counters of a mount's client since it was mounted are shown too: rpcs, renewals (those of the rpcs that renew
leases), one_sided_batches, one_sided_bytes, eager_bytes, tokens and recalls, and what the kernel has asked it for (upcalls).
They are also an attribute of the mount's root: getfattr -n user.polvo.counters DIR

Where regions have copies (`replicas` in polvod.toml) it shows who serves which, who has copies that count (mirrors) and who is
getting them, which regions lack a mirror and which nobody serves, and when changes are answered (`durability`).

Exit codes: 0 all nodes answer, and each region is served and has all its replicas; 1 a node does not answer, or no node does;
8 all nodes answer, but regions lack a mirror or are not served.";

/// `polvo status`
#[derive(Args, Debug, Clone)]
pub struct StatusArgs {
    /// polvo://HOST:PORT of a node
    pub url: Option<OsString>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Also the counters of the mount at this directory
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Again and again, until it is interrupted; with --json a line each time
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo df`
#[derive(Args, Debug, Clone)]
pub struct DfArgs {
    /// polvo://HOST:PORT of a node
    pub url: Option<OsString>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo node`
#[derive(Subcommand, Debug, Clone)]
pub enum NodeCommand {
    /// Take a node into the cluster
    #[command(after_long_help = ADD_HELP)]
    Add(AddNodeArgs),
    /// Take a node out of the cluster for good
    #[command(after_long_help = REMOVE_HELP)]
    Remove(RemoveNodeArgs),
}

const BALANCE_HELP: &str = "\
First all nodes get equally many regions to keep: those that lack a copy get one, and copies go from nodes with many to nodes with few, such
as one that was added. Each is made while the region is served, and the other one goes when that has all of it. That takes as long as copying
the data.

When a node dies others serve what it has served, and go on to when it is back. So then regions are handed over, one after the other, until
nodes serve equally many. Only a node that has all of a region can get it, and the one that has served it keeps its copy, so no region has
fewer copies meanwhile. Operations on a region wait while it is handed over, for some hundredths of a second; no program sees an error.
Regions without copies stay where they are.

A region stays for `timeouts.lease_ms` where it has come to, or its node has been started, before it can be handed over; the command waits
for that, and for copies that are being made, up to --wait.

With --away-from no copy is made or moved, and a node serves nothing afterwards but what nobody else has, and can be stopped without anybody
waiting for others to take its place. Its copies stay. When it is back, `polvo balance` gives it its share again.

Exit codes: 0 done; 1 it could not be done, or not all of it, and why.

Examples:
  polvo balance --dry-run                  what would be handed over
  polvo balance                            after a node has come back, or was added
  polvo balance --away-from 2              before node 2 is stopped, for an upgrade, say";

/// `polvo balance`
#[derive(Args, Debug, Clone)]
pub struct BalanceArgs {
    /// polvo://HOST:PORT of a node
    pub url: Option<OsString>,
    /// Leave this node without anything to serve
    #[arg(long, value_name = "NODE")]
    pub away_from: Option<u16>,
    /// Say what would be handed over, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Longest wait for one region, in seconds
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub wait: u64,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const ADD_HELP: &str = "\
In order, on the machine of the new node:
1. Write its configuration: that of another node, with an entry more in cluster.nodes, which says `added = true`, and with its own
   node.id, pool and mount. (The other nodes' files get the entry, too, when they are next changed; it is not needed there.)
2. polvo format --config FILE
3. polvo node add --config FILE
4. Start polvod. It has nothing yet.
5. polvo balance: regions are copied to it, with nobody waiting for that, and it serves its share of them.
A node that is started before it is added waits for that. Where a cluster of so many nodes has more of them vote on the cluster map,
the new one comes to vote within a minute.

Without --config say where the others reach the node: polvo node add 3 --address tcp://HOST:PORT. `polvo up --nodes N` does all this but the
last step in a development cluster.

Regions without copies stay where they are: of those a new node gets nothing. The number of a node that was removed is not used again. Giving
the command again changes nothing.

Exit codes: 0 the node is in the cluster; 1 it is not, and why; 2 the command line or the configuration is wrong.

Examples:
  polvo node add --config /etc/polvo/polvod.toml
  polvo node add 3 --address tcp://10.0.0.4:7400 --cluster-dir /etc/polvo";

/// `polvo node add`
#[derive(Args, Debug, Clone)]
pub struct AddNodeArgs {
    /// Number of the node; left out with --config
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    pub node: Option<u16>,
    /// The new node's configuration, which names it and the others
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the others reach it, in order of preference: tcp://HOST:PORT or shm:///PATH/OF/SOCKET
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "config",
        required_unless_present = "config"
    )]
    pub address: Vec<Address>,
    /// Name of its machine: nodes with the same one use shm with each other
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub host: Option<String>,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const REMOVE_HELP: &str = "\
In order: `polvo balance --away-from NODE`, so that it has nothing to serve, then this. The copies that it has are made at other nodes first,
if there are nodes that have none yet; the command waits for that, and goes on where it was when it is given again. So no region has a copy
fewer, and no program waits. At the end its polvod ends by itself. It may also be stopped first: then its regions lack a copy until others
are made. It is refused as long as the node serves regions, or is the only one that has all of one. Nodes that vote on the cluster map are
replaced. `polvo status` lists the nodes that there are.

With --force the node is declared dead, and nothing of it is waited for: its copies are given up, and others are made as far as there are
nodes. It must not answer any more. What it served a mirror takes over; where there is no mirror, the command refuses.

WARNING. Where the node was one of those that vote on the cluster map, and no majority of them is left (of two nodes the one that voted
has died), --force makes one of the nodes that are left vote alone from then on. Nobody can know then what the dead ones did last:
- If they went on without the node that is left (a cut cable), what they answered since is lost.
- The removed node must never be started again with its old pool. If it reaches another node it hears that it was removed, ends with exit
  code 9, and never serves again. As long as it reaches nobody it serves its old files to whoever reaches it.
- Force one node's removal at a time, and only where you know that the others are dead, not cut off: two sides that are both forced are
  two clusters.
A node's number is not used again.

Exit codes: 0 the node is removed; 1 it is not, and why; or its copies were not made elsewhere within --wait.

Examples:
  polvo balance --away-from 3 && polvo node remove 3
  polvo node remove 3                              node 3 is stopped, or has nothing but copies
  polvo node remove 0 --force                      node 0 is dead for good";

/// `polvo node remove`
#[derive(Args, Debug, Clone)]
pub struct RemoveNodeArgs {
    /// Number of the node
    pub node: u16,
    /// polvo://HOST:PORT of a node that stays
    pub url: Option<OsString>,
    /// It is dead for good: wait for nothing, and have a node that is left vote alone where no majority is (read the WARNING)
    #[arg(long)]
    pub force: bool,
    /// Longest wait for copies that are made elsewhere, in seconds
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub wait: u64,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const FSCK_HELP: &str = "\
Offline, name the pools of all nodes of the cluster, or its directory: what one region says of inodes in another can
be checked only then. The pools stay as they are (but for DAX devices, on which what a crash has left is finished, as
starting the node would do it). Notes are about what nodes finish or put right by themselves when they start.
Where regions have copies, each copy is checked as a mirror would find it that takes its region's place, and compared with the region;
a line a region says how they stand. Who serves what the newest cluster map in the pools says.
With --repair damage is repaired, as far as it can be: what a mirror in the set has whole is taken from there (file data
with --data), what is redundant is written anew, single flipped bits are put right, damaged directories are rebuilt from
what can be read of their logs, and what has lost its name, or some of its contents, goes to /lost+found. A copy of the pools beforehand is the only way back. With --dry-run everything is done to
a copy in memory and shown.
Online, the nodes check their regions while they serve; on a busy cluster a change that is under way may look like
damage, so findings are checked a second time.

Exit codes: 0 clean; 1 errors were repaired, none is left; 4 errors are left; 8 the check or the repair could not be made.

Examples:
  polvo fsck --dir .polvo                          all pools of a stopped development cluster
  polvo fsck /pool/0 /pool/1 /pool/2
  polvo fsck --repair --dry-run --dir .polvo       what a repair would do
  polvo fsck --repair --yes /pool/0 /pool/1        repair without a question
  polvo fsck --online                              the default cluster, running";

/// `polvo fsck`
#[derive(Args, Debug, Clone)]
pub struct FsckArgs {
    /// Pools of a stopped cluster, or polvo://HOST:PORT with --online
    pub pools: Vec<OsString>,
    /// Check a running cluster
    #[arg(long)]
    pub online: bool,
    /// Compare all file data with its checksums, too (of a running cluster: polvo scrub)
    #[arg(long, conflicts_with = "online")]
    pub data: bool,
    /// Directory of a stopped development cluster: all its pools
    #[arg(long, value_name = "DIR", conflicts_with_all = ["online", "pools"])]
    pub dir: Option<PathBuf>,
    /// Repair damage (of a stopped cluster)
    #[arg(long, conflicts_with = "online")]
    pub repair: bool,
    /// Do not repair, say what would be repaired
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// Repair without asking
    #[arg(short, long, requires = "repair", conflicts_with = "dry_run")]
    pub yes: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const SCRUB_HELP: &str = "\
The nodes read all file data that they hold and compare it with the checksums that were stored when it was written. Programs go on
meanwhile; --rate leaves them more of the memory's bandwidth. Damaged files are named, with the places in them: they are read as
they are, unless a mount or a command is told to verify what it reads, and sound again when those places are written or the file is
put back from a copy. Nodes scrub now and then by themselves (scrub_every_h and scrub_mib_s in polvod.toml), and say in their log
what they find. Pools that were made without checksums, or by a version before them, have nothing to compare with.

Regions with copies are compared with their mirrors in the set, page by page. What is damaged in a region (file data, an inode, a log)
and whole in a mirror is repaired from there; what is another in a mirror is sent to it. Both are said, and no error.

Exit codes: 0 clean, or all that was found is repaired; 1 damage is left, or not everything could be looked at.

Examples:
  polvo scrub                             the default cluster
  polvo scrub --rate 500M                 at most 500 MiB a second
  polvo scrub --json polvo://node1:7400";

/// `polvo scrub`
#[derive(Args, Debug, Clone)]
pub struct ScrubArgs {
    /// polvo://HOST:PORT
    pub url: Option<OsString>,
    /// At most so many bytes a second, such as 500M
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo ls`
#[derive(Args, Debug, Clone)]
pub struct LsArgs {
    /// What to list
    #[arg(default_value = "/")]
    pub paths: Vec<OsString>,
    /// One line each, with attributes
    #[arg(short)]
    pub long: bool,
    /// Names that begin with a dot too
    #[arg(short)]
    pub all: bool,
    /// Directories themselves, not what they hold
    #[arg(short)]
    pub directory: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo cat`
#[derive(Args, Debug, Clone)]
pub struct CatArgs {
    /// Files
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const COPY_HELP: &str = "\
As with cp(1): when the destination is a directory, files go into it under their own names. Modes and modification
times are kept, owners too when root copies. Holes stay holes. With -r symbolic links are copied as links, devices and
sockets are left out with a message.

Examples:
  polvo put notes.txt /
  polvo put -r ./tree /backup
  polvo get -r /backup .
  polvo get polvo://node1:7400/notes.txt - | less";

/// `polvo put`
#[derive(Args, Debug, Clone)]
pub struct PutArgs {
    /// Local files (- is standard input) and, last, the destination in the cluster
    #[arg(required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    /// Directories with all they hold
    #[arg(short, long)]
    pub recursive: bool,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo get`
#[derive(Args, Debug, Clone)]
pub struct GetArgs {
    /// Files in the cluster and, last, the local destination (- is standard output)
    #[arg(required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    /// Directories with all they hold
    #[arg(short, long)]
    pub recursive: bool,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo rm`
#[derive(Args, Debug, Clone)]
pub struct RmArgs {
    /// What to remove
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Directories with all they hold
    #[arg(short, long)]
    pub recursive: bool,
    /// What is not there is no error
    #[arg(short, long)]
    pub force: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo mkdir`
#[derive(Args, Debug, Clone)]
pub struct MkdirArgs {
    /// Directories to make
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Parents too; one that is there already is no error
    #[arg(short, long)]
    pub parents: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

const SET_HELP: &str = "\
Settings:
  replicas=N         files are kept at N nodes
  durability=MODE    when a change is answered: sync-flush, sync or async (`polvo up --help`, docs/replication.md)
  default            both as the cluster's default is
  placement=WHERE    hash (spread over all nodes) or local (at the node where, or beside which, who makes a file is)

They hold for files and directories that are made in the directory from then on, and are inherited by its new directories; what is there
stays where it is, and so does what is moved there. Only region sets can be chosen that the cluster was made with (`cluster.sets` in
polvod.toml, `polvo up --set`); `polvo status` lists them. Without settings, shows what is set. On a mount the same is the extended
attributes user.polvo.regions and user.polvo.placement.

Examples:
  polvo set /scratch replicas=1                    fast, and lost when its node's pool is lost
  polvo set /checkpoints durability=async          copies follow within a second, nobody waits for them
  polvo set /scratch default                       as at first
  setfattr -n user.polvo.regions -v replicas=1 /mnt/scratch";

/// `polvo set`
#[derive(Args, Debug, Clone)]
pub struct SetArgs {
    /// Directory
    pub dir: OsString,
    /// What to set, as NAME=VALUE
    #[arg(value_name = "SETTING")]
    pub settings: Vec<OsString>,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo mv`
#[derive(Args, Debug, Clone)]
pub struct MvArgs {
    /// What to move and, last, where to
    #[arg(required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    /// Fail when the destination exists
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo stat`
#[derive(Args, Debug, Clone)]
pub struct StatArgs {
    /// Files
    #[arg(required = true)]
    pub paths: Vec<OsString>,
    /// Follow a symbolic link
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// As JSON, a line each
    #[arg(long)]
    pub json: bool,
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// `polvo bench`
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    /// Passed on to polvo-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

const COMPLETIONS_HELP: &str = "\
`make install` and the package put them in place. For one user alone:
  polvo completions bash > ~/.local/share/bash-completion/completions/polvo
  polvo completions zsh > ~/.zfunc/_polvo                      with ~/.zfunc in fpath
  polvo completions fish > ~/.config/fish/completions/polvo.fish";

/// `polvo completions`
#[derive(Args, Debug, Clone)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
    /// The program that is completed
    #[arg(value_enum, default_value_t = Program::Polvo)]
    pub program: Program,
}

/// A program with completions.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// The command line
    Polvo,
    /// The node
    Polvod,
}

const MAN_HELP: &str = "\
`make install` and the package put them in place.

Example:
  polvo man /tmp/pages && man /tmp/pages/polvo-fsck.1";

/// `polvo man`
#[derive(Args, Debug, Clone)]
pub struct ManArgs {
    /// Directory for the pages
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn all_arguments_of_bench_are_passed_on() {
        let cli = Cli::parse_from(["polvo", "bench", "--quick", "network", "--help", "-x"]);
        let Command::Bench(bench) = cli.command else {
            panic!("not bench: {cli:?}")
        };
        assert_eq!(bench.arguments, ["--quick", "network", "--help", "-x"]);
    }

    #[test]
    fn every_command_says_what_it_does() {
        let all = Cli::command();
        for command in all.get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments().filter(|a| a.get_id() != "help") {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
