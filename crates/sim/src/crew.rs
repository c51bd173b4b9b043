//! The clients of a run: where they live, their tasks, and how they die and are replaced.

use crate::actor::{Actor, Shared};
use crate::dice::Dice;
use crate::plan::Home;
use polvo_client::{Client, LocalClient, Transfers};
use polvo_cluster::{MapCell, SessionContext};
use polvo_node::sim::Cluster;
use polvo_proto::Cred;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::task::{JoinHandle, spawn_local};

/// One client, with all its lives.
pub struct Member {
    number: usize,
    /// Where it lives.
    pub home: Home,
    /// Operations that it has still to do.
    quota: Rc<Cell<u32>>,
    lives: u32,
    running: Option<Life>,
}

struct Life {
    /// Its host, if it is outside.
    host: String,
    client: Arc<Client>,
    work: JoinHandle<()>,
    maintenance: JoinHandle<()>,
}

/// All of them.
pub struct Crew {
    shared: Rc<Shared>,
    /// In order of their numbers.
    pub members: Vec<Member>,
}

/// A client outside, on a host of that name, with its maintenance running.
pub fn outside(cluster: &Cluster, host: &str, transfers: Transfers) -> (Rc<LocalClient>, JoinHandle<()>) {
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
    with_maintenance(&Client::over(context, Cred::Kernel, transfers))
}

fn with_maintenance(client: &Arc<Client>) -> (Rc<LocalClient>, JoinHandle<()>) {
    let maintenance = spawn_local(client.local().maintain());
    (client.local(), maintenance)
}

impl Member {
    /// The host whose connections are its own.
    pub fn host(&self) -> String {
        match (&self.home, &self.running) {
            (Home::Inside(node), _) => format!("node-{node}"),
            (Home::Outside, Some(life)) => life.host.clone(),
            (Home::Outside, None) => format!("client-{}", self.number),
        }
    }
}

impl Crew {
    /// Starts all clients of the plan.
    pub fn start(cluster: &Cluster, shared: &Rc<Shared>) -> Crew {
        let homes = shared.plan.clients.iter().enumerate();
        let members = homes.map(|(number, home)| Member {
            number,
            home: *home,
            quota: Rc::new(Cell::new(shared.plan.operations)),
            lives: 0,
            running: None,
        });
        let mut crew = Crew {
            shared: shared.clone(),
            members: members.collect(),
        };
        for number in 0..crew.members.len() {
            crew.begin(cluster, number);
        }
        crew
    }

    /// Starts a client (again), as a new session, if its home is there.
    pub fn begin(&mut self, cluster: &Cluster, number: usize) {
        let member = &mut self.members[number];
        if member.running.is_some() || matches!(member.home, Home::Inside(node) if !cluster.is_running(node)) {
            return;
        }
        let host = format!("client-{number}-{}", member.lives);
        let (client, maintenance) = match member.home {
            Home::Outside => outside(cluster, &host, self.shared.plan.transfers[number]),
            Home::Inside(node) => with_maintenance(&Client::internal_as(
                cluster.node(node),
                cluster.next_session(),
                host.clone(),
                Cred::Kernel,
            )),
        };
        client.client().verify_reads(self.shared.plan.verifying[number]);
        let dice = Dice::new(
            self.shared.plan.seed,
            1000 + 100 * number as u64 + u64::from(member.lives),
        );
        let shared_client = client.client().clone();
        let mut actor = Actor::new(&host, client, &self.shared, dice);
        let quota = member.quota.clone();
        let work = spawn_local(async move { actor.work(&quota).await });
        self.shared.history.note(&format!("{host} begins"));
        member.lives += 1;
        member.running = Some(Life {
            host,
            client: shared_client,
            work,
            maintenance,
        });
    }

    /// Ends a client as `kill -9` would. No more of it runs from here on; await the result to have it gone.
    pub fn kill(&mut self, number: usize) -> Option<Corpse> {
        let life = self.members[number].running.take()?;
        self.shared.history.note(&format!("{} dies", life.host));
        life.work.abort();
        life.maintenance.abort();
        Some(Corpse { life })
    }

    /// Clients inside a node that run.
    pub fn inside(&self, node: u16) -> Vec<usize> {
        let at_home = |member: &&Member| member.home == Home::Inside(node) && member.running.is_some();
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

    /// All have done what they had to, except those that are dead for good.
    pub fn is_done(&self) -> bool {
        self.members.iter().all(|member| match &member.running {
            Some(life) => life.work.is_finished(),
            None => member.quota.get() == 0,
        })
    }

    /// Ends all in good order, once their work is done.
    pub async fn dismiss(&mut self) {
        for member in &mut self.members {
            if let Some(life) = member.running.take() {
                let ended = life.work.await;
                life.client.shutdown();
                if ended.is_err_and(|error| error.is_panic()) || life.maintenance.await.is_err() {
                    let mut wrong = self.shared.wrong.borrow_mut();
                    wrong.push(format!("{} has panicked", life.host));
                }
            }
        }
    }
}

/// A client that was killed.
#[must_use = "it is gone only after `gone`"]
pub struct Corpse {
    life: Life,
}

impl Corpse {
    /// The host it was on.
    pub fn host(&self) -> &str {
        &self.life.host
    }

    /// Until nothing is left of it.
    pub async fn gone(self) {
        // both were aborted: how they ended does not matter, and panics are collected elsewhere
        drop(self.life.work.await);
        drop(self.life.maintenance.await);
    }
}
