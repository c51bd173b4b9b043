//! Octopus, Fig. 15: collect-dispatch transactions against two-phase commit.

use super::log_commits::ROOT;
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::report::Target::{self, AtLeast, AtMost};
use crate::report::{Findings, Table, Unit, figure};
use crate::requester::Requester;
use crate::samples::{Samples, rate};
use crate::suite::{Context, Experiment};
use polvo_format::FileKind;
use polvo_node::Transactions;
use polvo_proto::{FsError, InodeRef};
use polvo_testbed::cluster::{BenchNode, ClusterPlan, PATIENT};
use polvo_testbed::cores::{MEASURING, cores};
use polvo_testbed::on_thread::OnThread;
use std::rc::Rc;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "octopus-fig15",
    title: "Collect-dispatch against two-phase commit (Octopus, Fig. 15)",
    about: "Transactions of two nodes (a directory here, the inode there; of a rename: the directory, the file) and of three: a \
            rename from a directory of the second node to one of the first, of a file of the third; and a rename that replaces, \
            in a directory of the first node, a file of the third by one of the second. To make or to remove something concerns \
            two nodes at most. The thread that asks is the coordinator; each other node has one reactor, which polls where \
            there is a core for each of them and sleeps between requests where there is not. Both ways of commit run the same \
            code but for what tells them apart, in clusters of their own, in turn: collect-dispatch, where the coordinator \
            alone logs and writes the others' bytes by one-sided operations, and two-phase commit, where each participant logs \
            its part, and is asked twice.\n\n\
            Latency: one transaction at a time. Throughput: eight are under way, in directories of their own.",
    run,
};

/// Transactions under way at a time, for throughput.
const UNDER_WAY: usize = 8;
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
    CreateFar,
    Replace,
}

/// Transactions that concern so many nodes. In this order each undoes what the ones before it have done; those with a name
/// are reported.
struct Course {
    nodes: u16,
    /// This part of the operations asked for.
    part: usize,
    steps: &'static [(Step, Option<&'static str>)],
}

const COURSES: [Course; 2] = [
    Course {
        nodes: 2,
        part: 4,
        steps: &[
            (Step::Create, Some("create, 2 nodes")),
            (Step::Rename, Some("rename, 2 nodes")),
            (Step::Unlink, Some("unlink, 2 nodes")),
            (Step::Mkdir, Some("mkdir, 2 nodes")),
            (Step::Rmdir, Some("rmdir, 2 nodes")),
        ],
    },
    Course {
        nodes: 3,
        part: 16,
        steps: &[
            (Step::CreateThere, None),
            (Step::RenameHere, Some("rename, 3 nodes")),
            (Step::UnlinkHere, None),
            (Step::Create, None),
            (Step::CreateFar, None),
            (Step::Replace, Some("rename that replaces, 3 nodes")),
            (Step::Unlink, None),
        ],
    },
];

/// What is measured, transactions under way, its unit, and what it has to be beside two-phase commit.
const KINDS: [(&str, usize, Unit, Target); 2] = [
    ("latency", 1, Unit::Ns, AtMost(LATENCY)),
    ("throughput", UNDER_WAY, Unit::PerS, AtLeast(THROUGHPUT)),
];
const COLUMNS: [&str; 5] = ["transaction", "two-phase commit", "collect-dispatch", "ratio", ""];

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    for provider in ["shm", "tcp"] {
        let mut tables = KINDS.map(|(what, ..)| Table::new(format!("{provider}, {what}"), &COLUMNS));
        for course in &COURSES {
            over(provider, course, context, found, &mut tables)?;
        }
        tables.into_iter().for_each(|table| found.table(table));
    }
    for course in &COURSES {
        let nodes = usize::from(course.nodes);
        if cores() < nodes {
            let cores = cores();
            found.note(format!(
                "{nodes} nodes share {cores} cores: their reactors sleep between requests, and what a transaction of {nodes} \
                 nodes takes is mostly that threads are woken."
            ));
        }
    }
    Ok(())
}

/// Who asks, and for what.
struct Parties {
    /// Colocated with the first node; new inodes go to the second.
    first: Requester,
    /// Colocated with the first node; new inodes go to the third, where there is one.
    far: Requester,
    /// Colocated with the second node; new inodes go to the third, where there is one.
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
        let (first, second) = (nodes[0].node(), nodes[1].node());
        let at_home = Requester::new(first, 0).await?;
        at_home.place_locally(ROOT).await?;
        let last = nodes.len() as u16 - 1;
        let mut parties = Parties {
            first: Requester::new(first, 1).await?,
            far: Requester::new(first, last).await?,
            second: Requester::new(second, last).await?,
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

    fn all(&self) -> [&Requester; 3] {
        [&self.first, &self.far, &self.second]
    }

    async fn take(&self, step: Step, lane: usize, names: &Names) -> Result<(), FsError> {
        let Parties {
            first,
            far,
            second,
            lanes,
        } = self;
        let Lane { here, there } = lanes[lane];
        let Names {
            file,
            renamed,
            moved,
            dir,
        } = names;
        match step {
            Step::Create => first.make(here, file, FileKind::File).await.map(drop),
            Step::Rename | Step::Replace => first.rename(here, file, here, renamed).await,
            Step::Unlink => first.unlink(here, renamed).await,
            Step::Mkdir => first.make(here, dir, FileKind::Directory).await.map(drop),
            Step::Rmdir => first.rmdir(here, dir).await,
            Step::CreateThere => second.make(there, file, FileKind::File).await.map(drop),
            Step::RenameHere => first.rename(there, file, here, moved).await,
            Step::UnlinkHere => first.unlink(here, moved).await,
            Step::CreateFar => far.make(here, renamed, FileKind::File).await.map(drop),
        }
    }
}

/// What one turn of a lane calls its files, made up before the clock runs.
struct Names {
    file: String,
    renamed: String,
    moved: String,
    dir: String,
}

impl Names {
    fn new(n: usize) -> Names {
        Names {
            file: format!("f{n}"),
            renamed: format!("g{n}"),
            moved: format!("h{n}"),
            dir: format!("d{n}"),
        }
    }
}

/// A cluster, and who asks it.
struct Rig {
    nodes: Vec<BenchNode>,
    here: OnThread,
    parties: Rc<Parties>,
    course: &'static Course,
}

impl Rig {
    fn new(
        provider: &str,
        course: &'static Course,
        transactions: Transactions,
        context: &Context<'_>,
    ) -> Result<Rig, BenchError> {
        let dir = context.scratch.join(format!("{transactions:?}"));
        std::fs::create_dir_all(&dir)?;
        let core = (usize::from(course.nodes) <= cores()).then_some(MEASURING);
        let plan = ClusterPlan {
            nodes: course.nodes,
            provider: Some(provider),
            transactions,
            // who measures is colocated with the first node, whose reactor has nothing else to do
            first_core: core,
            timeouts: PATIENT,
            ..ClusterPlan::one_node(&dir, POOL_LEN)
        };
        let nodes = plan.start()?;
        let here = OnThread::on_core(core)?;
        let parties = Rc::new(here.run(Parties::new(&nodes))?);
        Ok(Rig {
            nodes,
            here,
            parties,
            course,
        })
    }

    /// Transactions a second of each step, about `ops` of each, so many under way.
    fn rates(&self, under_way: usize, ops: usize) -> Result<Vec<f64>, BenchError> {
        self.here.run(async {
            for requester in self.parties.all() {
                requester.renew().await;
            }
        });
        let each = ops.div_ceil(under_way);
        let names: Rc<[Names]> = (0..each).map(Names::new).collect();
        let mut rates = Vec::with_capacity(self.course.steps.len());
        for (step, _) in self.course.steps {
            let took = self.here.run(async {
                let start = Instant::now();
                let working = (0..under_way).map(|lane| {
                    let (parties, names, step) = (self.parties.clone(), names.clone(), *step);
                    tokio::task::spawn_local(async move {
                        for names in &*names {
                            parties.take(step, lane, names).await?;
                        }
                        Ok::<_, FsError>(())
                    })
                });
                for lane in working.collect::<Vec<_>>() {
                    lane.await??;
                }
                Ok::<_, BenchError>(start.elapsed())
            })?;
            rates.push(rate(took, each * under_way));
        }
        Ok(rates)
    }

    fn stop(self) -> Result<(), BenchError> {
        let Rig {
            nodes, here, parties, ..
        } = self;
        here.run(async { parties.all().into_iter().for_each(Requester::close) });
        drop(parties);
        nodes.into_iter().try_for_each(BenchNode::stop)
    }
}

fn over(
    provider: &str,
    course: &'static Course,
    context: &Context<'_>,
    found: &mut Findings<'_>,
    tables: &mut [Table],
) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops / course.part);
    let _waits = BusyPolling::by_threads(usize::from(course.nodes));
    let ours = Rig::new(provider, course, Transactions::CollectDispatch, context)?;
    let theirs = Rig::new(provider, course, Transactions::TwoPhaseCommit, context)?;
    for ((what, under_way, unit, target), table) in KINDS.into_iter().zip(tables) {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            our_rates.push(ours.rates(under_way, ops)?);
            their_rates.push(theirs.rates(under_way, ops)?);
        }
        for (at, (_, name)) in course.steps.iter().enumerate() {
            let Some(name) = name else { continue };
            let figures = |rates: &[Vec<f64>]| {
                let of_round = |rates: &Vec<f64>| match unit {
                    Unit::Ns => 1e9 / rates[at],
                    _ => rates[at],
                };
                Samples::new(rates.iter().map(of_round).collect())
            };
            let row = |protocol: &str| format!("{provider} {name}, {what}, {protocol}");
            let (baseline, theirs) = (row("two-phase commit"), figures(&their_rates));
            found.figure(&baseline, unit, &theirs);
            let (name_of_row, ours) = (row("collect-dispatch"), figures(&our_rates));
            let row = found.against(&name_of_row, unit, &ours, &baseline, Some(target));
            let shown = |figures: &Samples| format!("{} {unit}", figure(figures.median()));
            table.line(vec![
                (*name).to_owned(),
                shown(&theirs),
                shown(&ours),
                row.ratio_shown(),
                row.met_shown(),
            ]);
        }
    }
    ours.stop()?;
    theirs.stop()
}
