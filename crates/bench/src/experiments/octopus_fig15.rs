//! Octopus, Fig. 15: collect-dispatch transactions against two-phase commit.

use super::log_commits::ROOT;
use crate::BenchError;
use crate::cluster::{BenchNode, ClusterPlan};
use crate::on_thread::OnThread;
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Findings, Unit};
use crate::requester::Requester;
use crate::samples::{Samples, rate};
use crate::suite::{Context, Experiment};
use polvo_fabric::{serve_spin_limit, set_serve_spin_limit};
use polvo_format::FileKind;
use polvo_node::Transactions;
use polvo_proto::{FsError, InodeRef};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "octopus-fig15",
    title: "Collect-dispatch against two-phase commit (Octopus, Fig. 15)",
    about: "Transactions of two nodes (a directory here, the inode there; of a rename: the directory, the file) and of three \
            (a rename from a directory of the second node to one of the first, of a file of the third). The thread that \
            asks is the coordinator; each other node has one reactor, which is awake. Both ways of commit run the same code but for \
            what tells them apart, in clusters of their own, in turn: collect-dispatch, where the coordinator alone logs and \
            writes the others' bytes by one-sided operations, and two-phase commit, where each participant logs its part, and \
            is asked twice.\n\nLatency: one transaction at a time. Throughput: eight are under way, in directories of their own.",
    run,
};

/// Transactions under way at a time, for throughput.
const UNDER_WAY: usize = 8;
const AWAKE: Duration = Duration::from_millis(5);
const NODES: u16 = 3;
const POOL_LEN: u64 = 256 << 20;
/// Less time than the baseline; more transactions than it.
const LATENCY: f64 = 0.7;
const THROUGHPUT: f64 = 1.5;

/// One transaction of each lane, of a kind.
#[derive(Clone, Copy)]
enum Step {
    Create,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
    CreateThere,
    RenameHere,
    UnlinkHere,
}

/// In this order each undoes what the ones before it have done; those with a name are reported.
const STEPS: [(Step, Option<&str>); 8] = [
    (Step::Create, Some("create, 2 nodes")),
    (Step::Rename, Some("rename, 2 nodes")),
    (Step::Unlink, Some("unlink, 2 nodes")),
    (Step::Mkdir, Some("mkdir, 2 nodes")),
    (Step::Rmdir, Some("rmdir, 2 nodes")),
    (Step::CreateThere, None),
    (Step::RenameHere, Some("rename, 3 nodes")),
    (Step::UnlinkHere, None),
];

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let before = serve_spin_limit();
    set_serve_spin_limit(AWAKE);
    let measured = ["shm", "tcp"]
        .into_iter()
        .try_for_each(|provider| over(provider, context, found));
    set_serve_spin_limit(before);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < usize::from(NODES) {
        found.note(format!(
            "{NODES} nodes share {cores} cores: what concerns three of them waits for a core as well."
        ));
    }
    measured
}

/// Who asks, and for what.
struct Parties {
    /// Inside the first node; new inodes go to the second.
    first: Requester,
    /// Inside the second node; new inodes go to the third.
    second: Requester,
    lanes: Vec<Lane>,
}

/// Directories for one transaction at a time.
struct Lane {
    /// On the first node.
    here: InodeRef,
    /// On the second node.
    there: InodeRef,
}

impl Parties {
    async fn new(nodes: &[BenchNode]) -> Result<Parties, BenchError> {
        let at_home = Requester::new(nodes[0].node(), 0).await?;
        at_home.place_locally(ROOT).await?;
        let mut parties = Parties {
            first: Requester::new(nodes[0].node(), 1).await?,
            second: Requester::new(nodes[1].node(), 2).await?,
            lanes: Vec::new(),
        };
        for n in 0..UNDER_WAY {
            let (here, there) = (format!("here{n}"), format!("there{n}"));
            parties.lanes.push(Lane {
                here: at_home.make(ROOT, &here, FileKind::Directory).await?,
                there: parties.first.make(ROOT, &there, FileKind::Directory).await?,
            });
        }
        at_home.close();
        Ok(parties)
    }

    async fn take(&self, step: Step, lane: usize, n: usize) -> Result<(), FsError> {
        let Parties { first, second, lanes } = self;
        let Lane { here, there } = lanes[lane];
        let (file, renamed, moved, dir) = (format!("f{n}"), format!("g{n}"), format!("h{n}"), format!("d{n}"));
        match step {
            Step::Create => first.make(here, &file, FileKind::File).await.map(drop),
            Step::Rename => first.rename(here, &file, here, &renamed).await,
            Step::Unlink => first.unlink(here, &renamed).await,
            Step::Mkdir => first.make(here, &dir, FileKind::Directory).await.map(drop),
            Step::Rmdir => first.rmdir(here, &dir).await,
            Step::CreateThere => second.make(there, &file, FileKind::File).await.map(drop),
            Step::RenameHere => first.rename(there, &file, here, &moved).await,
            Step::UnlinkHere => first.unlink(here, &moved).await,
        }
    }
}

/// A cluster, and who asks it.
struct Rig {
    nodes: Vec<BenchNode>,
    here: OnThread,
    parties: Rc<Parties>,
}

impl Rig {
    fn new(provider: &str, transactions: Transactions, context: &Context<'_>) -> Result<Rig, BenchError> {
        let dir = context.scratch.join(format!("{transactions:?}"));
        std::fs::create_dir_all(&dir)?;
        let plan = ClusterPlan {
            dir: &dir,
            nodes: NODES,
            pool_len: POOL_LEN,
            provider: Some(provider),
            transactions,
        };
        let nodes = plan.start()?;
        let here = OnThread::new()?;
        let parties = Rc::new(here.run(Parties::new(&nodes))?);
        Ok(Rig { nodes, here, parties })
    }

    /// Transactions a second of each step, about `ops` of each, so many under way.
    fn rates(&self, under_way: usize, ops: usize) -> Result<[f64; STEPS.len()], BenchError> {
        let each = ops.div_ceil(under_way);
        self.here.run(async {
            self.parties.first.renew().await;
            self.parties.second.renew().await;
        });
        let mut rates = [0.0; STEPS.len()];
        for ((step, _), into) in STEPS.iter().zip(&mut rates) {
            let took = self.here.run(async {
                let start = Instant::now();
                let working = (0..under_way).map(|lane| {
                    let (parties, step) = (self.parties.clone(), *step);
                    tokio::task::spawn_local(async move {
                        for n in 0..each {
                            parties.take(step, lane, n).await?;
                        }
                        Ok::<_, FsError>(())
                    })
                });
                for lane in working.collect::<Vec<_>>() {
                    lane.await??;
                }
                Ok::<_, BenchError>(start.elapsed())
            })?;
            *into = rate(took, each * under_way);
        }
        Ok(rates)
    }

    fn stop(self) -> Result<(), BenchError> {
        let Rig { nodes, here, parties } = self;
        here.run(async {
            parties.first.close();
            parties.second.close();
        });
        drop(parties);
        nodes.into_iter().try_for_each(BenchNode::stop)
    }
}

fn over(provider: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let effort = context.effort;
    let ours = Rig::new(provider, Transactions::CollectDispatch, context)?;
    let theirs = Rig::new(provider, Transactions::TwoPhaseCommit, context)?;
    for (what, under_way, unit, target) in [
        ("latency", 1, Unit::Ns, AtMost(LATENCY)),
        ("throughput", UNDER_WAY, Unit::PerS, AtLeast(THROUGHPUT)),
    ] {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for _ in 0..effort.rounds {
            our_rates.push(ours.rates(under_way, effort.ops / 4)?);
            their_rates.push(theirs.rates(under_way, effort.ops / 4)?);
        }
        for (at, name) in STEPS
            .iter()
            .enumerate()
            .filter_map(|(at, (_, name))| Some((at, (*name)?)))
        {
            let figures = |rates: &[[f64; STEPS.len()]]| {
                let of_round = |rates: &[f64; STEPS.len()]| match unit {
                    Unit::Ns => 1e9 / rates[at],
                    _ => rates[at],
                };
                Samples::new(rates.iter().map(of_round).collect())
            };
            let row = |protocol: &str| format!("{provider} {name}, {what}, {protocol}");
            let baseline = row("two-phase commit");
            found.figure(&baseline, unit, &figures(&their_rates));
            found.against(
                &row("collect-dispatch"),
                unit,
                &figures(&our_rates),
                &baseline,
                Some(target),
            );
        }
    }
    ours.stop()?;
    theirs.stop()
}
