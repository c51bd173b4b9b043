//! The clients of a run: where they live, their tasks, and how they die and are replaced.

use crate::actor::{Actor, Shared};
use crate::kernel::Mount;
use crate::reader::LOOKS_MAX;
use crate::rng::Rng;
use crate::schedule::Home;
use polvo_client::{Client, LocalClient, Transfers};
use polvo_cluster::{MapCell, SessionContext};
use polvo_node::sim::{Cluster, Stillness};
use polvo_proto::Cred;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

/// One client, with all its incarnations.
pub struct Member {
    number: usize,
    /// Where it lives.
    pub home: Home,
    /// Operations that it has still to do.
    quota: Rc<Cell<u32>>,
    incarnations: u32,
    running: Option<Incarnation>,
}

struct Incarnation {
    /// Its host, if it is remote.
    host: String,
    client: Arc<Client>,
    work: JoinHandle<()>,
    maintenance: JoinHandle<()>,
    /// What answers for its tokens, if it uses any.
    watch: Option<JoinHandle<()>>,
    stillness: Stillness,
    /// Of the programs, too.
    host_stillness: Stillness,
}

/// All of them.
pub struct Workload {
    shared: Rc<Shared>,
    /// In order of their numbers.
    pub members: Vec<Member>,
}

/// A remote client, on a host of that name, with its maintenance running.
pub fn remote(cluster: &Cluster, host: &str, transfers: Transfers) -> (Rc<LocalClient>, JoinHandle<()>) {
    with_maintenance(&remote_client(cluster, host, transfers), &Stillness::default())
}

fn remote_client(cluster: &Cluster, host: &str, transfers: Transfers) -> Arc<Client> {
    let context = SessionContext::new(
        MapCell::new(cluster.map().clone()),
        cluster.client_identity(),
        cluster.next_session(),
        host.to_string(),
        None,
        cluster.timeouts(),
        None,
    );
    cluster.network().place(context.memory(), host);
    Client::over(context, Cred::Kernel, transfers)
}

fn with_maintenance(client: &Arc<Client>, stillness: &Stillness) -> (Rc<LocalClient>, JoinHandle<()>) {
    let maintenance = spawn_bound(stillness, client.local().maintain());
    (client.local(), maintenance)
}

/// A task of a client's process.
fn spawn_bound(stillness: &Stillness, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    let stillness = stillness.clone();
    spawn_local(async move { stillness.bound(task).await })
}

impl Member {
    /// The host whose connections are its own.
    pub fn host(&self) -> String {
        match (&self.home, &self.running) {
            (Home::Colocated(node), _) => format!("node-{node}"),
            (Home::Remote, Some(incarnation)) => incarnation.host.clone(),
            (Home::Remote, None) => format!("client-{}", self.number),
        }
    }
}

impl Workload {
    /// Starts all clients of the schedule.
    pub fn start(cluster: &Cluster, shared: &Rc<Shared>) -> Workload {
        let homes = shared.schedule.clients.iter().enumerate();
        let members = homes.map(|(number, home)| Member {
            number,
            home: *home,
            quota: Rc::new(Cell::new(match shared.schedule.readers[number] {
                true => LOOKS_MAX,
                false => shared.schedule.operations,
            })),
            incarnations: 0,
            running: None,
        });
        let mut workload = Workload {
            shared: shared.clone(),
            members: members.collect(),
        };
        for number in 0..workload.members.len() {
            workload.begin(cluster, number);
        }
        workload
    }

    /// Starts a client (again), as a new session, if its home is there.
    pub fn begin(&mut self, cluster: &Cluster, number: usize) {
        let member = &mut self.members[number];
        if member.running.is_some() || matches!(member.home, Home::Colocated(node) if !cluster.is_running(node)) {
            return;
        }
        let host = format!("client-{number}-{}", member.incarnations);
        let schedule = &self.shared.schedule;
        let client = match member.home {
            Home::Remote => remote_client(cluster, &host, schedule.transfers[number]),
            Home::Colocated(node) => Client::internal_as(
                cluster.node(node).colocated(),
                cluster.next_session(),
                host.clone(),
                Cred::Kernel,
            ),
        };
        let stillness = Stillness::default();
        let (client, maintenance) = with_maintenance(&client, &stillness);
        client.client().verify_reads(schedule.verifying[number]);
        if let Some(rule) = schedule.access_times[number] {
            client.client().keep_access_times(rule);
        }
        let stream = 100 * number as u64 + u64::from(member.incarnations);
        let rng = Rng::new(schedule.seed, 1000 + stream);
        let shared_client = client.client().clone();
        let mut actor = Actor::new(&host, client.clone(), &self.shared, rng);
        if schedule.is_syncing {
            actor.syncs(Rng::new(schedule.seed, 40_000 + stream));
        }
        let watch = schedule.tokens[number].then(|| {
            match schedule.mounted[number] {
                true => {
                    let rng = Rng::new(schedule.seed, 20_000 + stream);
                    let mount = Mount::new(client.clone(), stillness.clone(), rng, schedule.limits.plant);
                    let by_pages = schedule.by_pages[number].then(|| Rng::new(schedule.seed, 30_000 + stream));
                    actor.works_on(mount, by_pages);
                }
                false => client.client().use_tokens(None),
            }
            spawn_bound(&stillness, client.client().local().watch_tokens())
        });
        let quota = member.quota.clone();
        let reads = self.shared.schedule.readers[number];
        let host_stillness = Stillness::default();
        let work = spawn_bound(&host_stillness, async move {
            match reads {
                true => actor.read_on(&quota).await,
                false => actor.work(&quota).await,
            }
        });
        self.shared.history.note(&format!("{host} begins"));
        member.incarnations += 1;
        member.running = Some(Incarnation {
            host,
            client: shared_client,
            work,
            maintenance,
            watch,
            stillness,
            host_stillness,
        });
    }

    /// A client's process stands still until then, and its kernel goes on.
    pub fn stand_still(&self, number: usize, until: Instant) -> bool {
        let running = self.members[number].running.as_ref();
        running
            .inspect(|incarnation| incarnation.stillness.begin(until))
            .is_some()
    }

    /// All clients that are colocated with a node stand still with it.
    pub fn stand_still_with(&self, node: u16, until: Instant) {
        for number in self.colocated(node) {
            if let Some(incarnation) = &self.members[number].running {
                incarnation.stillness.begin(until);
                incarnation.host_stillness.begin(until);
            }
        }
    }

    /// Clients that are colocated with a node have no more to do: it is gone for good.
    pub fn give_up(&self, node: u16) {
        let there = self
            .members
            .iter()
            .filter(|member| member.home == Home::Colocated(node));
        there.for_each(|member| member.quota.set(0));
    }

    /// Mounted clients that run in processes of their own.
    pub fn mounts(&self) -> Vec<usize> {
        let is_mount =
            |number: &usize| self.shared.schedule.mounted[*number] && self.members[*number].home == Home::Remote;
        self.running().into_iter().filter(is_mount).collect()
    }

    /// Ends a client as `kill -9` would. No more of it runs from here on; await the result to have it gone.
    pub fn kill(&mut self, number: usize) -> Option<Corpse> {
        let incarnation = self.members[number].running.take()?;
        self.shared.history.note(&format!("{} dies", incarnation.host));
        incarnation.work.abort();
        incarnation.maintenance.abort();
        incarnation.watch.iter().for_each(JoinHandle::abort);
        Some(Corpse { incarnation })
    }

    /// Colocated clients that run.
    pub fn colocated(&self, node: u16) -> Vec<usize> {
        let at_home = |member: &&Member| member.home == Home::Colocated(node) && member.running.is_some();
        self.members
            .iter()
            .filter(at_home)
            .map(|member| member.number)
            .collect()
    }

    /// Clients that run.
    pub fn running(&self) -> Vec<usize> {
        let running = self.members.iter().filter(|member| member.running.is_some());
        running.map(|member| member.number).collect()
    }

    /// All have done what they had to, except those that are dead for good. Readers end with the others.
    pub fn is_done(&self) -> bool {
        let is_done = |member: &Member| match &member.running {
            Some(incarnation) => incarnation.work.is_finished(),
            None => member.quota.get() == 0,
        };
        let readers = &self.shared.schedule.readers;
        let mut others = self.members.iter().filter(|member| !readers[member.number]);
        self.shared.is_work_over.set(others.all(is_done));
        self.members.iter().all(is_done)
    }

    /// Readers that run.
    pub fn readers(&self) -> Vec<usize> {
        let running = self.running().into_iter();
        running.filter(|number| self.shared.schedule.readers[*number]).collect()
    }

    /// Ends all in good order, once their work is done.
    pub async fn dismiss(&mut self) {
        for member in &mut self.members {
            if let Some(incarnation) = member.running.take() {
                let ended = incarnation.work.await;
                incarnation.client.shutdown();
                let watched = match incarnation.watch {
                    Some(watch) => watch.await.is_err(),
                    None => false,
                };
                if ended.is_err_and(|error| error.is_panic()) || incarnation.maintenance.await.is_err() || watched {
                    let mut wrong = self.shared.wrong.borrow_mut();
                    wrong.push(format!("{} has panicked", incarnation.host));
                }
            }
        }
    }
}

/// A client that was killed.
#[must_use = "it is gone only after `gone`"]
pub struct Corpse {
    incarnation: Incarnation,
}

impl Corpse {
    /// The host it was on.
    pub fn host(&self) -> &str {
        &self.incarnation.host
    }

    /// Until nothing is left of it.
    pub async fn gone(self) {
        // both were aborted: how they ended does not matter, and panics are collected elsewhere
        drop(self.incarnation.work.await);
        drop(self.incarnation.maintenance.await);
        if let Some(watch) = self.incarnation.watch {
            drop(watch.await);
        }
    }
}
