//! Octopus, Fig. 8, and beyond: what more nodes, more reactors and more clients bring.

use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::crowd::touch;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Findings, Table, Unit, figure};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::{Client, LocalClient, OpenFile};
use polvo_format::{Attr, FileKind};
use polvo_proto::{FsError, InodeRef, NewFile};
use polvo_testbed::cluster::{BenchNode, ClusterPlan, PATIENT, new_file, root};
use polvo_testbed::cores::cores;
use polvo_testbed::on_thread::OnThread;
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "scaling",
    title: "More nodes, reactors and clients (Octopus, Fig. 8)",
    about: "1, 2 and 4 nodes, each with a pool, a reactor and a region of its own; one node with more reactors, as many as there are \
            cores (2, 4 and 8 of them), and four regions for each; and 1 to 16 clients, each with a session, connections, a directory \
            and a file of 4 MiB of its own and one operation under way. Inodes go where the hash of \
            their names says, so with several nodes most creations and removals are transactions of two. In one shared \
            directory all names go to the log of one inode. Every write is durable.\n\n\
            The clients live on as many threads as there are cores beside the reactors' (at least one), where they take turns. \
            Reactors poll for requests where every thread has a core; otherwise nobody polls, and whoever waits sleeps. Ratios \
            are to one client of one node.",
    run,
};

/// Nodes, each with one reactor.
const NODES: [u16; 3] = [1, 2, 4];
/// Reactors of one node.
const REACTORS: [NonZeroUsize; 3] = [
    NonZeroUsize::new(2).expect("not 0"),
    NonZeroUsize::new(4).expect("not 0"),
    NonZeroUsize::new(8).expect("not 0"),
];
/// Regions of a node for each of several reactors.
const REGIONS: usize = 4;
const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];
const MOST: usize = CLIENTS[CLIENTS.len() - 1];
/// Pools of all nodes together, bytes.
const POOLS: u64 = 1 << 30;
/// A file of each client, bytes.
const FILE: usize = 4 << 20;
const MIB: usize = 1 << 20;
/// A measurement takes so long for each of the small operations asked for.
const TIME_OF_AN_OP: Duration = Duration::from_micros(4);
/// Overwrites of a client in a measurement, at most: what they free can be used again only after it.
const OVERWRITES: usize = (POOLS / 4) as usize / 4096 / MOST;
/// Bound of what a thread is told to do.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Operations of a client that need not wait before others of its thread get their turn.
const OPERATIONS_ROUND: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Stat,
    Unlink,
    CreateShared,
    Read,
    Overwrite,
    LargeRead,
}

/// In this order each finds what the ones before it have left.
const OPERATIONS: [(Operation, &str); 7] = [
    (Operation::Create, "create"),
    (Operation::Stat, "stat"),
    (Operation::Unlink, "unlink"),
    (Operation::CreateShared, "create in one directory"),
    (Operation::Read, "4 KiB random read"),
    (Operation::Overwrite, "4 KiB random overwrite"),
    (Operation::LargeRead, "1 MiB read"),
];

/// A client, on its thread.
struct Member {
    client: Arc<Client>,
    local: Rc<LocalClient>,
    number: usize,
    own: InodeRef,
    shared: InodeRef,
    file: Arc<OpenFile>,
    /// Names there are in its own directory.
    names: Cell<usize>,
    /// Names of its own there are in the shared one.
    shared_names: Cell<usize>,
}

fn reference(attr: &Attr) -> InodeRef {
    InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    }
}

fn directory() -> NewFile {
    NewFile {
        kind: FileKind::Directory,
        mode: 0o755,
        ..new_file()
    }
}

impl Member {
    async fn new(client: Arc<Client>, number: usize, shared: InodeRef) -> Result<Member, FsError> {
        let local = client.local();
        let own = local
            .create(shared, format!("own-{number}").as_bytes(), directory())
            .await?;
        let own = reference(&own);
        let (_, file) = local.create_open(own, b"file", new_file()).await?;
        let chunk = vec![number as u8; MIB];
        for at in (0..FILE).step_by(MIB) {
            local.write(&file, at as u64, &chunk).await?;
        }
        let (names, shared_names) = (Cell::new(0), Cell::new(0));
        Ok(Member {
            client,
            local,
            number,
            own,
            shared,
            file,
            names,
            shared_names,
        })
    }

    fn name(&self, n: usize) -> Vec<u8> {
        format!("name-{}-{n}", self.number).into_bytes()
    }

    /// The `n`th operation of a measurement; false: there is nothing left to do.
    async fn perform(&self, operation: Operation, n: usize, bytes: &mut [u8]) -> Result<bool, FsError> {
        // a stride that leaves neighbours alone
        let page = (n.wrapping_mul(7919) % (FILE / 4096) * 4096) as u64;
        match operation {
            Operation::Create => {
                self.local.create(self.own, &self.name(n), new_file()).await?;
                self.names.set(n + 1);
            }
            Operation::CreateShared => {
                self.local.create(self.shared, &self.name(n), new_file()).await?;
                self.shared_names.set(n + 1);
            }
            Operation::Stat => {
                self.local.lookup(self.own, &self.name(n % self.names.get())).await?;
            }
            Operation::Unlink => {
                let Some(left) = self.names.get().checked_sub(1) else {
                    return Ok(false);
                };
                self.local.unlink(self.own, &self.name(left)).await?;
                self.names.set(left);
            }
            Operation::Read => {
                self.local.read(&self.file, page, &mut bytes[..4096]).await?;
            }
            Operation::Overwrite if n == OVERWRITES => return Ok(false),
            Operation::Overwrite => {
                self.local.write(&self.file, page, &bytes[..4096]).await?;
            }
            Operation::LargeRead => {
                self.local.read(&self.file, (n * MIB % FILE) as u64, bytes).await?;
            }
        }
        Ok(true)
    }

    /// Operations for so long: what each took, nanoseconds.
    async fn perform_all(&self, operation: Operation, time: Duration, alone: bool) -> Result<Vec<f64>, FsError> {
        let (mut took, mut bytes) = (Vec::new(), vec![7; MIB]);
        let start = Instant::now();
        let mut before = start;
        while before - start < time && self.perform(operation, took.len(), &mut bytes).await? {
            let now = Instant::now();
            took.push((now - before).as_nanos() as f64);
            before = now;
            if !alone && took.len().is_multiple_of(OPERATIONS_ROUND) {
                tokio::task::yield_now().await;
                before = Instant::now();
            }
        }
        Ok(took)
    }

    /// Removes the names that are left, and has the nodes see the session.
    async fn tidy(&self) -> Result<(), FsError> {
        for n in 0..self.names.take() {
            self.local.unlink(self.own, &self.name(n)).await?;
        }
        for n in 0..self.shared_names.take() {
            self.local.unlink(self.shared, &self.name(n)).await?;
        }
        self.local.renew().await;
        Ok(())
    }
}

/// What the clients of a thread are told.
#[derive(Clone, Copy)]
enum Task {
    /// Those with a number below, all at a time.
    Perform(Operation, usize, Duration),
    Tidy,
}

/// What they have done.
struct Done {
    start: Instant,
    end: Instant,
    /// Of each operation, nanoseconds.
    took: Vec<f64>,
}

/// A thread of clients.
struct Worker {
    tasks: mpsc::Sender<Task>,
    done: mpsc::Receiver<Result<Done, String>>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(clients: Vec<(usize, Arc<Client>)>, shared: InodeRef) -> Result<Worker, BenchError> {
        let (tasks, told) = mpsc::channel();
        let (say, done) = mpsc::channel();
        let thread = std::thread::Builder::new().name("clients".into()).spawn(move || {
            let result = serve(clients, shared, &told, &say);
            if let Err(why) = result {
                // whoever does not listen any more has failed before
                let _ = say.send(Err(why.to_string()));
            }
        })?;
        let worker = Worker { tasks, done, thread };
        worker.wait()?;
        Ok(worker)
    }

    fn tell(&self, task: Task) -> Result<(), BenchError> {
        self.tasks
            .send(task)
            .map_err(|_| "a thread of clients has ended".into())
    }

    fn wait(&self) -> Result<Done, BenchError> {
        let done = self.done.recv_timeout(TIMEOUT);
        Ok(done.map_err(|_| "a thread of clients does not answer")??)
    }

    fn stop(self) -> Result<(), BenchError> {
        drop(self.tasks);
        self.thread.join().map_err(|_| "a thread of clients has failed".into())
    }
}

/// The life of a thread of clients: makes them, says so, and does as it is told until nobody tells it anything.
fn serve(
    clients: Vec<(usize, Arc<Client>)>,
    shared: InodeRef,
    tasks: &mpsc::Receiver<Task>,
    done: &mpsc::Sender<Result<Done, String>>,
) -> Result<(), BenchError> {
    let here = OnThread::new()?;
    let members: Vec<Rc<Member>> = here.run(async {
        let mut members = Vec::new();
        for (number, client) in clients {
            members.push(Rc::new(Member::new(client, number, shared).await?));
        }
        Ok::<_, FsError>(members)
    })?;
    let mut result = Ok(Done {
        start: Instant::now(),
        end: Instant::now(),
        took: Vec::new(),
    });
    loop {
        if done.send(result).is_err() {
            break;
        }
        let Ok(task) = tasks.recv() else { break };
        result = here.run(carry_out(task, &members)).map_err(|why| why.to_string());
    }
    // their connections end on the thread that has made them
    let faces: Vec<Arc<Client>> = members.iter().map(|member| member.client.clone()).collect();
    here.run(async { drop(members) });
    faces.iter().for_each(|client| client.shutdown());
    Ok(())
}

async fn carry_out(task: Task, members: &[Rc<Member>]) -> Result<Done, BenchError> {
    let start = Instant::now();
    let mut took = Vec::new();
    match task {
        Task::Perform(operation, below, time) => {
            let active = members.iter().filter(|member| member.number < below);
            let alone = active.clone().count() == 1;
            let working = active.cloned().map(|member| {
                tokio::task::spawn_local(async move { member.perform_all(operation, time, alone).await })
            });
            for member in working.collect::<Vec<_>>() {
                took.extend(member.await??);
            }
        }
        Task::Tidy => {
            for member in members {
                member.tidy().await?;
            }
        }
    }
    let end = Instant::now();
    Ok(Done { start, end, took })
}

/// What serves the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    nodes: u16,
    /// Of each node.
    reactors: NonZeroUsize,
}

/// What all others are compared with, at one client.
const ONE: Shape = Shape {
    nodes: 1,
    reactors: NonZeroUsize::MIN,
};

impl Shape {
    /// Those that are measured.
    fn all() -> impl Iterator<Item = Shape> {
        let nodes = NODES.into_iter().map(|nodes| Shape { nodes, ..ONE });
        // two of them at least, on whatever machine
        let reactors = REACTORS
            .into_iter()
            .filter(|n| n.get() <= cores().max(REACTORS[0].get()));
        nodes.chain(reactors.map(|reactors| Shape { reactors, ..ONE }))
    }

    /// Reactors of all nodes.
    fn threads(self) -> usize {
        usize::from(self.nodes) * self.reactors.get()
    }

    /// Threads of clients, beside these.
    fn client_threads(self) -> usize {
        cores().saturating_sub(self.threads()).clamp(1, MOST)
    }

    /// Of each node.
    fn regions(self) -> u16 {
        match self.reactors.get() {
            1 => 1,
            several => (several * REGIONS) as u16,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&counted(self.nodes.into(), "node"))?;
        match self.reactors.get() {
            1 => Ok(()),
            several => write!(f, " of {several} reactors"),
        }
    }
}

/// Operations a second, and what the middle one took, nanoseconds.
type Figures = (f64, f64);

/// Some nodes and all clients.
struct Rig {
    nodes: Vec<BenchNode>,
    workers: Vec<Worker>,
}

impl Rig {
    fn new(context: &Context<'_>, provider: &str, shape: Shape) -> Result<Rig, BenchError> {
        let plan = ClusterPlan {
            nodes: shape.nodes,
            reactors: shape.reactors,
            regions: shape.regions(),
            provider: Some(provider),
            timeouts: PATIENT,
            ..ClusterPlan::one_node(context.scratch, POOLS / u64::from(shape.nodes))
        };
        let nodes = plan.start()?;
        touch(&nodes, plan.pool_len)?;
        let colocated = nodes[0].internal();
        let top = root(&colocated)?;
        let shared = colocated.run(|c| async move { c.create(top, b"shared", directory()).await })?;
        colocated.shutdown();
        let mut shares: Vec<Vec<_>> = (0..shape.client_threads()).map(|_| Vec::new()).collect();
        for number in 0..MOST {
            let client = nodes[number % nodes.len()].external(provider)?;
            client.start_maintenance();
            let share = number % shares.len();
            shares[share].push((number, client));
        }
        let workers = shares
            .into_iter()
            .map(|clients| Worker::start(clients, reference(&shared)))
            .collect::<Result<_, _>>()?;
        Ok(Rig { nodes, workers })
    }

    /// What so many clients do, all at a time.
    fn tell(&self, task: Task, clients: usize) -> Result<Figures, BenchError> {
        let workers = &self.workers[..clients.min(self.workers.len())];
        workers.iter().try_for_each(|worker| worker.tell(task))?;
        let (mut all, mut took) = (None, Vec::new());
        for worker in workers {
            let done = worker.wait()?;
            let (start, end) = all.unwrap_or((done.start, done.end));
            all = Some((start.min(done.start), end.max(done.end)));
            took.extend(done.took);
        }
        let (start, end) = all.ok_or("nobody was told anything")?;
        if took.is_empty() {
            return Ok((0.0, 0.0));
        }
        let ops = took.len() as f64;
        Ok((ops / (end - start).as_secs_f64(), Samples::new(took).median()))
    }

    /// Of each operation.
    fn measure(&self, clients: usize, time: Duration) -> Result<Vec<Figures>, BenchError> {
        let figures = OPERATIONS
            .iter()
            .map(|(operation, _)| self.tell(Task::Perform(*operation, clients, time), clients))
            .collect::<Result<_, _>>()?;
        // what was freed may be used again once every session has been seen after it
        for _ in 0..2 {
            self.nodes.iter().for_each(|node| node.node().advance_tick());
            self.tell(Task::Tidy, MOST)?;
        }
        Ok(figures)
    }

    fn stop(self) -> Result<(), BenchError> {
        self.workers.into_iter().try_for_each(Worker::stop)?;
        self.nodes.into_iter().try_for_each(BenchNode::stop)
    }
}

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    for provider in ["shm", "tcp"] {
        over(provider, context, found)?;
    }
    let cores = cores();
    for shape in Shape::all() {
        let clients = shape.client_threads();
        found.note(format!(
            "{shape} and {} of clients on {}: {}.",
            counted(clients, "thread"),
            counted(cores, "core"),
            match shape.threads() + clients <= cores {
                true => "a core for each reactor and thread, reactors poll",
                false => "fewer cores than reactors and threads, so more of them bring no more throughput here; nobody polls",
            }
        ));
    }
    Ok(())
}

/// So many, in words.
fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Of an operation: its name, and its throughput over the clients, for each shape.
type Curves = Vec<(&'static str, Vec<(Shape, Vec<(f64, f64)>)>)>;

fn over(provider: &str, context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let time = TIME_OF_AN_OP * context.effort.ops as u32;
    let mut curves: Curves = OPERATIONS.iter().map(|(_, what)| (*what, Vec::new())).collect();
    let mut lines: Vec<Vec<Vec<String>>> = vec![Vec::new(); OPERATIONS.len()];
    for shape in Shape::all() {
        let _waits = BusyPolling::by_threads(shape.threads() + shape.client_threads());
        let rig = Rig::new(context, provider, shape)?;
        let mut all: Vec<Vec<Vec<Figures>>> = Vec::new();
        for clients in CLIENTS {
            let rounds = (0..context.effort.rounds).map(|_| rig.measure(clients, time));
            all.push(rounds.collect::<Result<_, _>>()?);
        }
        rig.stop()?;
        for (which, (what, curves)) in curves.iter_mut().enumerate() {
            let mut cells = vec![format!("{what}, {shape}")];
            let mut points = Vec::new();
            for (clients, rounds) in CLIENTS.iter().zip(&all) {
                let of = |figure: fn(&Figures) -> f64| {
                    Samples::new(rounds.iter().map(|round| figure(&round[which])).collect())
                };
                let (rate, took) = (of(|figures| figures.0), of(|figures| figures.1));
                let name = |shape: Shape, clients: usize| {
                    format!("{provider} {what}, {shape}, {}", counted(clients, "client"))
                };
                let (row, base) = (name(shape, *clients), name(ONE, 1));
                let latency = |name: &str| format!("{name}: latency");
                let ratio = if row == base {
                    found.figure(&row, Unit::PerS, &rate);
                    found.figure(&latency(&row), Unit::Ns, &took);
                    "1.00x".to_owned()
                } else {
                    found.against(&latency(&row), Unit::Ns, &took, &latency(&base), None);
                    found.against(&row, Unit::PerS, &rate, &base, None).ratio_shown()
                };
                points.push((*clients as f64, rate.median()));
                cells.push(format!(
                    "{}k {ratio} {} us",
                    figure(rate.median() / 1e3),
                    figure(took.median() / 1e3)
                ));
            }
            curves.push((shape, points));
            lines[which].push(cells);
        }
    }
    let mut columns = vec!["operation, served by".to_owned()];
    columns.extend(CLIENTS.map(|clients| counted(clients, "client")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = format!("{provider}: operations a second, ratio to one client of one node, latency");
    let mut table = Table::new(title, &columns);
    lines.into_iter().flatten().for_each(|cells| table.line(cells));
    found.table(table);
    for (what, curves) in curves {
        found.plot(Plot::Lines {
            name: format!("scaling-{provider}-{}", what.replace(' ', "-")),
            title: format!("{what} over {provider}"),
            x: Axis::log("clients"),
            y: Axis::linear("operations a second"),
            series: curves
                .into_iter()
                .map(|(shape, points)| Series {
                    name: shape.to_string(),
                    points,
                })
                .collect(),
        });
    }
    Ok(())
}
