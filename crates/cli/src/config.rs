//! The daemon's configuration file: parsed and checked at the edge, trusted afterwards.
//!
//! Unknown keys, wrong types and values that cannot be are errors that name the file, the line, the key and the cure.
//! [`crate::config_template::TEMPLATE`] explains every key.

use crate::secret::Secret;
use crate::text_position::{explain, key_at, line_of};
use crate::{CliError, ClusterId, ConfigProblem, Context};
use polvo_cluster::Timeouts;
use polvo_fabric::{Address, Security};
use polvo_format::{NodeId, REGIONS_MAX};
use polvo_node::{OneSided, ScrubPace};
use polvo_pmem::Persistence;
use polvo_proto::{RegionSet, SetWish};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Largest configuration file, bytes.
const FILE_MAX: u64 = 4 << 20;
/// What the messages point to.
const HELP: &str = "polvod --print-config explains every key";
/// Default of `cluster.regions_per_node`.
const REGIONS_PER_NODE: u16 = 4;
/// Regions a node that a configuration may ask for.
pub const REGIONS_PER_NODE_MAX: u16 = 1024;

/// Most reactors of a node.
pub const REACTORS_MAX: usize = 64;
/// It has no more than these unless it is told so.
const REACTORS_UNASKED: usize = 16;
/// Longest time for which a node may be told to poll, in microseconds.
const POLL_MAX_US: u64 = 1_000_000;

/// A node in the static map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigNode {
    /// Which.
    pub id: NodeId,
    /// Where the others reach it.
    pub addresses: Vec<Address>,
    /// Name of its machine, when given.
    pub host: Option<String>,
    /// It came to the cluster after that was made.
    pub added: bool,
}

/// A mount inside the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigMount {
    /// Mount point.
    pub dir: PathBuf,
    /// Options, comma-separated.
    pub options: String,
}

/// Limits of every wait of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigTimeouts {
    /// Connect and handshake.
    pub connect: Duration,
    /// One RPC.
    pub rpc: Duration,
    /// An inode held by a transaction.
    pub held: Duration,
    /// Session lease.
    pub lease: Duration,
    /// Lease on tokens.
    pub token: Duration,
    /// A node that is away.
    pub away: Duration,
    /// Clean end of the daemon.
    pub stop: Duration,
}

impl ConfigTimeouts {
    /// The part that the cluster crate knows.
    pub fn cluster(&self) -> Timeouts {
        Timeouts {
            connect: self.connect,
            rpc: self.rpc,
            held: self.held,
            lease: self.lease,
            token: self.token,
            away: self.away,
        }
    }
}

impl Default for ConfigTimeouts {
    fn default() -> Self {
        let Timeouts {
            connect,
            rpc,
            held,
            lease,
            token,
            away,
        } = Timeouts::default();
        ConfigTimeouts {
            connect,
            rpc,
            held,
            lease,
            token,
            away,
            stop: Duration::from_secs(10),
        }
    }
}

/// A checked configuration. Paths are absolute or relative to the working directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// Identity of the cluster; `None`: the secret file names it.
    pub cluster: Option<ClusterId>,
    /// File with the secret.
    pub secret_file: PathBuf,
    /// What becomes of bytes that travel over tcp.
    pub security: Security,
    /// Regions a node.
    pub regions_per_node: u16,
    /// Region sets, the default first: at no more nodes than there are, and no two alike.
    pub sets: Vec<RegionSet>,
    /// When the copies of a node that is away are made elsewhere; `None`: never.
    pub replace_after: Option<Duration>,
    /// All nodes, by id.
    pub nodes: Vec<ConfigNode>,
    /// Which of them this is; always one of `nodes`.
    pub node: NodeId,
    /// Where to listen.
    pub listen: Vec<Address>,
    /// How long to poll for the next request before sleeping; `None`: as it pays over each provider.
    pub poll: Option<Duration>,
    /// Threads that serve connections.
    pub reactors: NonZeroUsize,
    /// Where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// The pool.
    pub pool: PathBuf,
    /// Override of what is detected.
    pub persistence: Option<Persistence>,
    /// To whom one-sided access to file data is given.
    pub one_sided: OneSided,
    /// Pools that are made have checksums of file data.
    pub checksums: bool,
    /// When and how fast file data is compared with them unasked.
    pub scrub: Option<ScrubPace>,
    /// Limits.
    pub timeouts: ConfigTimeouts,
    /// A mount in the daemon.
    pub mount: Option<ConfigMount>,
    /// Log filter.
    pub log_level: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    cluster: RawCluster,
    node: RawNode,
    pool: RawPool,
    #[serde(default)]
    timeouts: RawTimeouts,
    mount: Option<RawMount>,
    #[serde(default)]
    log: RawLog,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    id: Option<Spanned<String>>,
    secret_file: PathBuf,
    security: Option<Spanned<String>>,
    regions_per_node: Option<Spanned<u16>>,
    replicas: Option<Spanned<u8>>,
    replace_after_s: Option<Spanned<u64>>,
    durability: Option<Spanned<String>>,
    sets: Option<Spanned<Vec<Spanned<String>>>>,
    nodes: Spanned<Vec<RawClusterNode>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClusterNode {
    id: Spanned<u16>,
    addresses: Spanned<Vec<Spanned<String>>>,
    host: Option<String>,
    added: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    id: Spanned<u16>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    poll_us: Option<Spanned<u64>>,
    reactors: Option<Spanned<usize>>,
    pid_file: Option<PathBuf>,
    one_sided: Option<Spanned<String>>,
    scrub_every_h: Option<Spanned<u64>>,
    scrub_mib_s: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    path: PathBuf,
    persistence: Option<Spanned<String>>,
    checksums: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawTimeouts {
    connect_ms: Option<Spanned<u64>>,
    rpc_ms: Option<Spanned<u64>>,
    held_ms: Option<Spanned<u64>>,
    lease_ms: Option<Spanned<u64>>,
    token_ms: Option<Spanned<u64>>,
    away_ms: Option<Spanned<u64>>,
    stop_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMount {
    dir: PathBuf,
    #[serde(default)]
    options: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLog {
    level: Option<Spanned<String>>,
}

/// Default of `node.scrub_every_h`: a week.
const SCRUB_EVERY_H: u64 = 7 * 24;
/// Largest, ten years.
const SCRUB_EVERY_MAX_H: u64 = 10 * 365 * 24;
/// Default of `node.scrub_mib_s`.
const SCRUB_MIB_S: u64 = 64;
/// Largest, a TiB.
const SCRUB_MAX_MIB_S: u64 = 1 << 20;

/// Default of `cluster.replace_after_s`: ten minutes.
const REPLACE_AFTER_S: u64 = 600;
/// Largest, a year.
const REPLACE_AFTER_MAX_S: u64 = 365 * 24 * 3600;

/// To whom one-sided access to data is given.
fn parse_one_sided(word: &str) -> Result<OneSided, String> {
    match word {
        "all" => Ok(OneSided::All),
        "nodes" => Ok(OneSided::Nodes),
        other => Err(format!("{other:?} must be all or nodes")),
    }
}

fn parse_log_level(level: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(level) {
        Ok(_) => Ok(level.to_string()),
        Err(why) => Err(format!("{why}; such as info or debug")),
    }
}

/// How many reactors each of so many nodes of this machine has: they share its cores.
pub fn reactors_of(nodes: usize) -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let each = (cores / nodes.max(1)).clamp(1, REACTORS_UNASKED);
    NonZeroUsize::new(each).unwrap_or(NonZeroUsize::MIN)
}

/// Refuses numbers beyond these limits.
fn within<T: PartialOrd + Copy + Display>(
    limits: RangeInclusive<T>,
    unit: &'static str,
) -> impl FnOnce(&T) -> Result<T, String> {
    move |number| match limits.contains(number) {
        true => Ok(*number),
        false => Err(format!("must be {} to {}{unit}", limits.start(), limits.end())),
    }
}

/// How many replicas of each region a cluster of so many nodes has unless it is told so: where others have a majority without a dead
/// node, nothing goes with it.
pub fn default_replicas(nodes: usize) -> u8 {
    if nodes < 3 { 1 } else { 2 }
}

/// How many replicas of each region a cluster of so many nodes can have.
///
/// # Errors
/// None, more than [`RegionSet::REPLICAS_MAX`], or more than there are nodes.
pub fn check_replicas(wanted: u8, nodes: usize) -> Result<u8, String> {
    within(1..=RegionSet::REPLICAS_MAX, "")(&wanted)?;
    match usize::from(wanted) <= nodes {
        true => Ok(wanted),
        false => Err(format!(
            "{wanted} replicas of each region need {wanted} nodes, and there {}; add nodes, or ask for fewer replicas",
            if nodes == 1 {
                "is 1".into()
            } else {
                format!("are {nodes}")
            }
        )),
    }
}

/// The region sets that a cluster of so many nodes has: the default and, of further ones, each over it.
///
/// # Errors
/// One that the nodes cannot have, or that is there already.
pub fn check_sets<'w>(
    default: RegionSet,
    further: impl IntoIterator<Item = &'w SetWish>,
    nodes: usize,
) -> Result<Vec<RegionSet>, String> {
    let mut sets = vec![default];
    for set in further.into_iter().map(|wish| wish.over(default)) {
        check_replicas(set.replicas, nodes)?;
        if sets.iter().any(|other| other.to_string() == set.to_string()) {
            return Err(format!("regions with {set} are there already"));
        }
        sets.push(set);
    }
    Ok(sets)
}

/// The text under examination, to say where a value lies.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn problem<T>(&self, value: &Spanned<T>, what: impl Into<String>) -> ConfigProblem {
        let at = value.span().start;
        ConfigProblem {
            file: self.file.into(),
            line: line_of(self.text, at),
            key: key_at(self.text, at),
            what: what.into(),
        }
    }

    /// A value that may be left out, as `check` makes it of what is written.
    fn optional<T, U>(
        &self,
        given: &Option<Spanned<T>>,
        check: impl FnOnce(&T) -> Result<U, String>,
    ) -> Result<Option<U>, ConfigProblem> {
        let Some(given) = given else { return Ok(None) };
        check(given.as_ref()).map(Some).map_err(|why| self.problem(given, why))
    }

    fn addresses(&self, list: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<Address>, ConfigProblem> {
        if list.as_ref().is_empty() {
            return Err(self.problem(
                list,
                "the list is empty; name at least one address, such as tcp://HOST:PORT",
            ));
        }
        let parse = |text: &Spanned<String>| match text.as_ref().parse::<Address>() {
            Ok(Address::Sim(_)) => Err(self.problem(text, "sim addresses exist in the simulator only")),
            Ok(address) => Ok(address),
            Err(why) => Err(self.problem(text, format!("{why}; write tcp://HOST:PORT or shm:///PATH/OF/SOCKET"))),
        };
        list.as_ref().iter().map(parse).collect()
    }

    fn wait(&self, given: &Option<Spanned<u64>>, default: Duration) -> Result<Duration, ConfigProblem> {
        let ms = self.optional(given, within(1..=3_600_000, " milliseconds"))?;
        Ok(ms.map_or(default, Duration::from_millis))
    }

    fn scrub_pace(&self, node: &RawNode) -> Result<Option<ScrubPace>, ConfigProblem> {
        let every_h = self.optional(&node.scrub_every_h, within(0..=SCRUB_EVERY_MAX_H, ""))?;
        let mib_s = self.optional(&node.scrub_mib_s, within(1..=SCRUB_MAX_MIB_S, ""))?;
        let every_h = every_h.unwrap_or(SCRUB_EVERY_H);
        Ok((every_h > 0).then_some(ScrubPace {
            every: Duration::from_secs(every_h * 3600),
            rate: mib_s.unwrap_or(SCRUB_MIB_S) << 20,
        }))
    }
}

impl Config {
    /// Reads and checks a configuration file.
    pub fn read(file: &Path) -> Result<Config, CliError> {
        let what = || format!("configuration {}", file.display());
        let meta = std::fs::metadata(file).doing(what)?;
        if meta.len() > FILE_MAX {
            return Err(CliError::Usage(format!("{}: over {FILE_MAX} bytes", what())));
        }
        Ok(Config::parse(&std::fs::read_to_string(file).doing(what)?, file)?)
    }

    /// Checks the text of a configuration file; relative paths start at the directory of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigProblem> {
        let raw: RawConfig = toml::from_str(text).map_err(|e| explain(file, text, &e, HELP))?;
        let source = Source { file, text };
        let base = file.parent().unwrap_or(Path::new(""));

        let cluster = source.optional(&raw.cluster.id, |id| id.parse())?;
        let security = source.optional(&raw.cluster.security, |word| word.parse())?;
        let regions_per_node = source.optional(&raw.cluster.regions_per_node, within(1..=REGIONS_PER_NODE_MAX, ""))?;
        let regions_per_node = regions_per_node.unwrap_or(REGIONS_PER_NODE);
        let nodes = Self::nodes(&source, &raw.cluster.nodes)?;
        // what a cluster is made of, also when it has grown
        let first = nodes.iter().filter(|node| !node.added).count();
        let replicas = source.optional(&raw.cluster.replicas, |wanted| check_replicas(*wanted, first))?;
        let replicas = replicas.unwrap_or_else(|| default_replicas(first));
        let replace_after_s = source.optional(
            &raw.cluster.replace_after_s,
            within(0..=REPLACE_AFTER_MAX_S, " seconds"),
        )?;
        let replace_after_s = replace_after_s.unwrap_or(REPLACE_AFTER_S);
        let durability = source.optional(&raw.cluster.durability, |word| word.parse())?;
        let default = RegionSet {
            replicas,
            durability: durability.unwrap_or_default(),
        };
        let sets = Self::sets(&source, &raw.cluster.sets, default, first)?;
        if first * usize::from(regions_per_node) * sets.len() > REGIONS_MAX {
            let what = format!("nodes times regions_per_node, times sets, is more than {REGIONS_MAX} regions");
            return Err(source.problem(&raw.cluster.nodes, what));
        }
        let node = NodeId(*raw.node.id.as_ref());
        let Some(me) = nodes.iter().find(|n| n.id == node) else {
            let ids: Vec<String> = nodes.iter().map(|n| n.id.0.to_string()).collect();
            return Err(source.problem(
                &raw.node.id,
                format!("no such node in cluster.nodes: {}", ids.join(", ")),
            ));
        };
        let listen = match &raw.node.listen {
            None => me.addresses.clone(),
            Some(list) => source.addresses(list)?,
        };
        let poll = source.optional(&raw.node.poll_us, within(0..=POLL_MAX_US, " microseconds"))?;
        let reactors = source.optional(&raw.node.reactors, within(1..=REACTORS_MAX, ""))?;
        let one_sided = source.optional(&raw.node.one_sided, |word| parse_one_sided(word))?;
        let persistence = source.optional(&raw.pool.persistence, |word| parse_persistence(word))?;
        let log_level = source.optional(&raw.log.level, |level| parse_log_level(level))?;
        let pid_file = raw.node.pid_file.as_ref().filter(|path| !path.as_os_str().is_empty());
        Ok(Config {
            file: file.into(),
            cluster,
            secret_file: base.join(raw.cluster.secret_file),
            security: security.unwrap_or_default(),
            regions_per_node,
            sets,
            replace_after: (replace_after_s > 0).then(|| Duration::from_secs(replace_after_s)),
            nodes,
            node,
            listen,
            poll: poll.map(Duration::from_micros),
            reactors: reactors.and_then(NonZeroUsize::new).unwrap_or_else(|| reactors_of(1)),
            pid_file: pid_file.map(|path| base.join(path)),
            pool: base.join(&raw.pool.path),
            persistence: persistence.flatten(),
            one_sided: one_sided.unwrap_or(OneSided::All),
            checksums: raw.pool.checksums.unwrap_or(true),
            scrub: source.scrub_pace(&raw.node)?,
            timeouts: Self::timeouts(&source, &raw.timeouts)?,
            mount: raw.mount.map(|m| ConfigMount {
                dir: base.join(m.dir),
                options: m.options,
            }),
            log_level: log_level.unwrap_or_else(|| "info".to_string()),
        })
    }

    fn timeouts(source: &Source<'_>, t: &RawTimeouts) -> Result<ConfigTimeouts, ConfigProblem> {
        let defaults = ConfigTimeouts::default();
        let rpc_at = t.rpc_ms.as_ref().or(t.held_ms.as_ref()).map(|ms| ms.span().start);
        let token_at = t.token_ms.as_ref().or(t.held_ms.as_ref()).map(|ms| ms.span().start);
        let held = source.wait(&t.held_ms, defaults.held)?;
        let timeouts = ConfigTimeouts {
            connect: source.wait(&t.connect_ms, defaults.connect)?,
            rpc: source.wait(&t.rpc_ms, defaults.rpc)?,
            held,
            lease: source.wait(&t.lease_ms, defaults.lease)?,
            token: source.wait(&t.token_ms, defaults.token.min(held / 2))?,
            away: source.wait(&t.away_ms, defaults.away)?,
            stop: source.wait(&t.stop_ms, defaults.stop)?,
        };
        let problem = |at: Option<usize>, key: &str, what: String| ConfigProblem {
            file: source.file.into(),
            line: at.filter(|at| *at > 0).map_or(0, |at| line_of(source.text, at)),
            key: key.into(),
            what,
        };
        let held = timeouts.held.as_millis();
        if timeouts.rpc <= timeouts.held {
            let what =
                format!("must be more than held_ms ({held}), so that a node that waits for an inode can still say so");
            return Err(problem(rpc_at, "timeouts.rpc_ms", what));
        }
        if timeouts.token >= timeouts.held {
            let what = format!("must be less than held_ms ({held}), so that a change can wait for who has a token");
            return Err(problem(token_at, "timeouts.token_ms", what));
        }
        Ok(timeouts)
    }

    fn sets(
        source: &Source<'_>,
        further: &Option<Spanned<Vec<Spanned<String>>>>,
        default: RegionSet,
        nodes: usize,
    ) -> Result<Vec<RegionSet>, ConfigProblem> {
        let Some(further) = further else {
            return Ok(vec![default]);
        };
        let mut wishes = Vec::new();
        for words in further.as_ref() {
            wishes.push(
                words
                    .as_ref()
                    .parse()
                    .map_err(|why: String| source.problem(words, why))?,
            );
            check_sets(default, &wishes, nodes).map_err(|why| source.problem(words, why))?;
        }
        check_sets(default, &wishes, nodes).map_err(|why| source.problem(further, why))
    }

    fn nodes(source: &Source<'_>, list: &Spanned<Vec<RawClusterNode>>) -> Result<Vec<ConfigNode>, ConfigProblem> {
        let mut seen = BTreeSet::new();
        let mut nodes = Vec::new();
        for raw in list.as_ref() {
            if !seen.insert(*raw.id.as_ref()) {
                return Err(source.problem(&raw.id, format!("node {} is there twice", raw.id.as_ref())));
            }
            nodes.push(ConfigNode {
                id: NodeId(*raw.id.as_ref()),
                addresses: source.addresses(&raw.addresses)?,
                host: raw.host.clone().filter(|h| !h.is_empty()),
                added: raw.added.unwrap_or_default(),
            });
        }
        if nodes.is_empty() {
            return Err(source.problem(list, "no node; name all nodes of the cluster"));
        }
        if nodes.iter().all(|node| node.added) {
            return Err(source.problem(
                list,
                "all nodes are added; name those of which the cluster was made, too",
            ));
        }
        nodes.sort_by_key(|n| n.id);
        Ok(nodes)
    }

    /// Reads the secret file and resolves the cluster's id: from the configuration, from the secret file, or (when both
    /// name it) from both if they agree.
    pub fn cluster_and_secret(&self) -> Result<(ClusterId, Secret), CliError> {
        let secret = Secret::read(&self.secret_file)?;
        let problem = |key: &str, what: String| ConfigProblem {
            file: self.file.clone(),
            line: 0,
            key: key.into(),
            what,
        };
        match (self.cluster, secret.cluster) {
            (Some(here), Some(there)) if here != there => Err(problem(
                "cluster.secret_file",
                format!("{} is of cluster {there}, not of {here}", self.secret_file.display()),
            )
            .into()),
            (Some(id), _) | (None, Some(id)) => Ok((id, secret)),
            (None, None) => Err(problem(
                "cluster.id",
                format!(
                    "left out, and {} does not name the cluster either",
                    self.secret_file.display()
                ),
            )
            .into()),
        }
    }
}

/// Parses `auto` (`None`) and the names of the persistence modes.
pub fn parse_persistence(word: &str) -> Result<Option<Persistence>, String> {
    if word == "auto" {
        return Ok(None);
    }
    word.parse::<Persistence>()
        .map(Some)
        .map_err(|e| format!("{e}, or auto"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_template::TEMPLATE;
    use polvo_proto::Durability;

    /// The error of the template with one line replaced.
    fn error_with(old: &str, new: &str) -> String {
        assert!(TEMPLATE.contains(old), "the template has {old:?}");
        let text = TEMPLATE.replacen(old, new, 1);
        Config::parse(&text, Path::new("/etc/p.toml")).unwrap_err().to_string()
    }

    /// What the fuzzer has found to be worth keeping.
    #[test]
    fn whatever_the_text_is_it_is_read_or_refused() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/configuration");
        let mut inputs = 0;
        for input in std::fs::read_dir(corpus).unwrap() {
            let bytes = std::fs::read(input.unwrap().path()).unwrap();
            let _ = crate::url::Url::parse(&bytes);
            if let Ok(text) = std::str::from_utf8(&bytes) {
                let _ = Config::parse(text, Path::new("/etc/p.toml"));
            }
            inputs += 1;
        }
        assert!(inputs > 100, "{inputs} inputs");
    }

    #[test]
    fn an_unknown_key_is_named_with_line_and_known_ones() {
        let error = error_with("path = \"/dev/dax0.0\"", "pth = \"/dev/dax0.0\"");
        assert!(error.starts_with("/etc/p.toml:"), "{error}");
        assert!(error.contains("key pool.pth") && error.contains("`path`"), "{error}");
        assert!(error.contains("--print-config"), "{error}");
    }

    /// What `deny_unknown_fields` says that a section takes.
    fn known_keys(error: &str) -> Vec<String> {
        let listed = error.split_once("expected one of ").expect("an unknown key").1;
        let keys = listed.split('`').skip(1).step_by(2);
        keys.map(str::to_string).collect()
    }

    #[test]
    fn every_wait_is_in_the_template_the_manual_and_the_file_of_clients() {
        let keys = known_keys(&toml::from_str::<RawTimeouts>("nonsense = 1").err().unwrap().to_string());
        assert_eq!(keys.len(), 7, "{keys:?}");
        let manual = include_str!("../../../docs/operations.md");
        let of_clients = include_str!("cluster_dir.rs");
        for key in keys {
            assert!(
                TEMPLATE.contains(&format!("\n# {key} = ")),
                "{key} is not in the template"
            );
            assert!(
                manual.contains(&format!("| `timeouts.{key}` | ")),
                "{key} is not in the table of waits"
            );
            assert!(
                of_clients.contains(&format!("{key}: Option<u64>")),
                "clients cannot set {key}"
            );
        }
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let error = error_with("# connect_ms = 2000", "connect_ms = \"soon\"");
        let line = TEMPLATE.lines().position(|l| l == "# connect_ms = 2000").unwrap() + 1;
        assert!(
            error.starts_with(&format!("/etc/p.toml:{line}: key timeouts.connect_ms: ")),
            "{error}"
        );
        assert!(error.contains("expected u64"), "{error}");
    }

    #[test]
    fn security_is_one_of_three_words() {
        let config = |word| TEMPLATE.replacen("# security = \"auth\"", &format!("security = \"{word}\""), 1);
        let parse = |word| Config::parse(&config(word), Path::new("/etc/p.toml"));
        assert_eq!(parse("none").unwrap().security, Security::None);
        assert_eq!(parse("encrypt").unwrap().security, Security::Encrypt);
        let error = parse("tls").unwrap_err().to_string();
        assert!(
            error.contains("key cluster.security") && error.contains("none, auth or encrypt"),
            "{error}"
        );
    }

    #[test]
    fn replicas_are_no_more_than_there_are_nodes() {
        let config = |value| TEMPLATE.replacen("# replicas = 1", &format!("replicas = {value}"), 1);
        let parse = |value| Config::parse(&config(value), Path::new("/etc/p.toml"));
        assert_eq!(parse("1").unwrap().sets[0].replicas, 1);
        assert_eq!(parse("2").unwrap().sets[0].replicas, 2, "the template names two nodes");
        assert_eq!(
            Config::parse(TEMPLATE, Path::new("/p.toml")).unwrap().sets[0].replicas,
            1,
            "by default"
        );
        let third = format!("{TEMPLATE}\n[[cluster.nodes]]\nid = 7\naddresses = [\"tcp://10.0.0.7:7400\"]\n");
        assert_eq!(
            Config::parse(&third, Path::new("/p.toml")).unwrap().sets[0].replicas,
            2,
            "of three nodes"
        );
        let line = TEMPLATE.lines().position(|l| l == "# replicas = 1").unwrap() + 1;
        for (value, word) in [
            ("0", "must be 1 to 5"),
            ("6", "must be 1 to 5"),
            (
                "3",
                "need 3 nodes, and there are 2; add nodes, or ask for fewer replicas",
            ),
            ("\"two\"", "expected u8"),
        ] {
            let error = parse(value).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("/etc/p.toml:{line}: key cluster.replicas: ")) && error.contains(word),
                "{value}: {error}"
            );
        }
    }

    #[test]
    fn further_region_sets_are_told_from_the_default_and_each_other() {
        let config = |list: &str| TEMPLATE.replacen("# sets = []", &format!("sets = {list}"), 1);
        let parse = |list| Config::parse(&config(list), Path::new("/etc/p.toml"));
        let set = |replicas, durability| RegionSet { replicas, durability };
        let default = set(1, Durability::Sync);
        assert_eq!(parse("[]").unwrap().sets, [default]);
        assert_eq!(
            parse(r#"["replicas=2", "replicas=2,durability=async"]"#).unwrap().sets,
            [default, set(2, Durability::Sync), set(2, Durability::Async)]
        );
        let line = TEMPLATE.lines().position(|l| l == "# sets = []").unwrap() + 1;
        for (list, word) in [
            (r#"["replicas=3"]"#, "need 3 nodes, and there are 2"),
            (r#"["durability=async"]"#, "regions with replicas=1 are there already"),
            (r#"["replicas=2", "replicas=2"]"#, "there already"),
            (r#"["copies=2"]"#, "must be replicas=NUMBER or durability=MODE"),
            (r#"[""]"#, "nothing is given"),
            (r#""replicas=2""#, "expected a sequence"),
        ] {
            let error = parse(list).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("/etc/p.toml:{line}: key cluster.sets")) && error.contains(word),
                "{list}: {error}"
            );
        }
    }

    #[test]
    fn how_durable_a_change_is_when_it_is_answered() {
        let config = |value: &str| TEMPLATE.replacen("# durability = \"sync\"", &format!("durability = {value}"), 1);
        let parse =
            |value| Config::parse(&config(value), Path::new("/etc/p.toml")).map(|config| config.sets[0].durability);
        assert_eq!(
            Config::parse(TEMPLATE, Path::new("/p.toml")).unwrap().sets[0].durability,
            Durability::Sync
        );
        for (word, durability) in [
            ("\"async\"", Durability::Async),
            ("\"sync\"", Durability::Sync),
            ("\"sync-flush\"", Durability::SyncFlush),
        ] {
            assert_eq!(parse(word).unwrap(), durability);
        }
        let error = parse("\"lazy\"").unwrap_err().to_string();
        assert!(
            error.contains("key cluster.durability") && error.contains("must be async, sync or sync-flush"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_key_is_named() {
        let error = error_with("secret_file = \"secret\"\n", "");
        assert!(
            error.contains("missing field `secret_file`") && error.contains("key cluster"),
            "{error}"
        );
    }

    #[test]
    fn broken_toml_is_named_with_its_line() {
        assert!(error_with("[pool]", "[pool").starts_with("/etc/p.toml:"));
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        for (old, new, key, word) in [
            ("id = \"3f3f", "id = \"3f", "cluster.id", "UUID"),
            ("id = 1\n", "id = 0\n", "cluster.nodes.id", "twice"),
            (
                "[node]\n# Which of the nodes this is.\nid = 0",
                "[node]\nid = 7",
                "node.id",
                "no such node",
            ),
            (
                "# regions_per_node = 4",
                "regions_per_node = 0",
                "cluster.regions_per_node",
                "must be",
            ),
            ("# poll_us = 100", "poll_us = 1000001", "node.poll_us", "microseconds"),
            ("# reactors = 4", "reactors = 0", "node.reactors", "must be"),
            (
                "# lease_ms = 30000",
                "lease_ms = 0",
                "timeouts.lease_ms",
                "milliseconds",
            ),
            (
                "# persistence = \"auto\"",
                "persistence = \"hope\"",
                "pool.persistence",
                "clwb",
            ),
            (
                "addresses = [\"tcp://10.0.0.2:7400\"]",
                "addresses = []",
                "cluster.nodes.addresses",
                "empty",
            ),
        ] {
            let error = error_with(old, new);
            assert!(
                error.contains(&format!("key {key}: ")) && error.contains(word),
                "{new}: {error}"
            );
        }
    }
}
