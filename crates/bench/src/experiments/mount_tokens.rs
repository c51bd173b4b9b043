//! What it costs that others keep something: whoever changes it has them forget it first.

use crate::BenchError;
use crate::mounted::{Cache, Counters, Mounts, Server};
use crate::report::Target::AtMost;
use crate::report::{Findings, Unit};
use crate::samples::Samples;
use crate::suite::{Context, Experiment};
use polvo_client::{Client, ClientConfig};
use polvo_proto::{FsError, InodeRef};
use polvo_testbed::cluster::{ClusterPlan, new_file, root};
use polvo_testbed::on_thread::OnThread;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mount-tokens",
    title: "Changing what others keep",
    about: "Clients of one node that hold a token of a file, and another one that writes 4 KiB to it; over shm and over tcp (loopback), \
            1,000 holders over tcp alone. All holders live on one thread, and take a token of every file just before it is written to. \
            Round trips are counted: requests that the writer makes, and that the holder makes because it was asked.\n\n\
            On mounts: two, one colocated with the node and one over shm, look at a file and write to it in turn, as fast as they \
            can; and one that holds a token of a file is killed (kill -9) before the other one writes to it.",
    run,
};

/// Holders, where there are many.
const MANY: usize = 1000;
/// After so long who has a token waits at the node for what is asked of him.
const LISTENING: Duration = Duration::from_millis(200);
/// Whoever gets no token tries again, so often.
const TAKING: usize = 20;
/// Whoever has looked at something for so long has a token of it, if he can have one.
const LOOKING: Duration = Duration::from_millis(200);

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    for provider in ["shm", "tcp"] {
        with_holders(provider, 1, context.effort.ops.div_ceil(400), context, found)?;
    }
    with_holders("tcp", MANY, context.effort.rounds, context, found)?;
    if !Path::new("/dev/fuse").exists() {
        found.note("Without mounts: there is no /dev/fuse.");
        return Ok(());
    }
    let mounts = Mounts::start(context.scratch, 64 << 20)?;
    in_turn(&mounts, context.effort.ops / 10, found)?;
    killed(&mounts, context.effort.rounds, found)
}

/// So many holders of a file, of `files` files one after the other.
fn with_holders(
    provider: &str,
    count: usize,
    files: usize,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let plan = ClusterPlan::one_node(context.scratch, 256 << 20);
    let node = plan.start()?.pop().ok_or("one node was asked for")?;
    let writer = node.external(provider)?;
    let top = root(&writer)?;
    let mut alone = Vec::new();
    let mut held = Vec::new();
    let holders = Holders::start(node.client_config(provider)?, count)?;
    let (mut asked, mut round_trips) = (0, 0);
    // the first time they connect, which is not what is measured
    for number in 0..=files {
        let name = format!("file-{number}");
        let (_, file) = writer.run(|c| async move { c.create_open(top, name.as_bytes(), new_file()).await })?;
        let write = || {
            let (start, file) = (Instant::now(), file.clone());
            writer.run(|c| async move { c.write(&file, 0, &[1; 4096]).await })?;
            Ok::<_, FsError>(start.elapsed())
        };
        write()?;
        let nobody = write()?;
        // whoever is just giving all back that he does not use any more takes none
        let mut taken = 0;
        for _ in 0..TAKING {
            taken = holders.take(file.inode())?;
            if taken == count {
                break;
            }
            std::thread::sleep(LISTENING / 10);
        }
        if taken < count {
            return Err(format!("{taken} holders of {count} have got a token").into());
        }
        std::thread::sleep(LISTENING);
        let (before, requests) = (holders.counters(), writer.counters().rpcs);
        let took = write()?;
        let after = holders.counters();
        if number == 0 {
            continue;
        }
        if after.1 - before.1 != count as u64 {
            let asked = after.1 - before.1;
            return Err(format!("{asked} holders of {count} were asked; the write took {took:?}").into());
        }
        alone.push(nobody);
        held.push(took);
        round_trips += writer.counters().rpcs - requests;
        asked += after.0 - before.0;
    }
    holders.stop()?;
    writer.shutdown();
    node.stop()?;

    let held = Held {
        alone,
        held,
        asked,
        round_trips,
    };
    held.judge(provider, count, files, found);
    Ok(())
}

/// What writes took whose file nobody, or somebody, has a token of.
struct Held {
    alone: Vec<Duration>,
    held: Vec<Duration>,
    /// Requests of the holders.
    asked: u64,
    /// Of the writer.
    round_trips: u64,
}

impl Held {
    fn judge(&self, provider: &str, count: usize, files: usize, found: &mut Findings<'_>) {
        let (unit, in_unit): (_, fn(&Duration) -> f64) = match count {
            1 => (Unit::Ns, |took| took.as_nanos() as f64),
            _ => (Unit::Ms, |took| took.as_secs_f64() * 1e3),
        };
        let samples = |times: &[Duration]| Samples::new(times.iter().map(in_unit).collect());
        if count > 1 {
            let name = format!("write with {count} holders, {provider}");
            found.bounded(&name, unit, &samples(&self.held), AtMost(50.0));
            return;
        }
        let base = format!("write with no holder, {provider}");
        found.figure(&base, unit, &samples(&self.alone));
        found.against(
            &format!("write with one holder, {provider}"),
            unit,
            &samples(&self.held),
            &base,
            None,
        );
        let each = |total: u64| Samples::exact(total as f64 / files as f64);
        let name = format!("round trips of the writer, one holder, {provider}");
        found.bounded(&name, Unit::Requests, &each(self.round_trips), AtMost(1.0));
        // a session that has tokens also asks twice a second what is asked of it
        let name = format!("round trips of the holder, {provider}");
        found.bounded(&name, Unit::Requests, &each(self.asked), AtMost(1.05));
    }
}

/// Clients that hold tokens, on a thread of their own.
struct Holders {
    clients: Vec<Arc<Client>>,
    take: tokio::sync::mpsc::UnboundedSender<InodeRef>,
    taken: Receiver<usize>,
    thread: JoinHandle<Result<(), String>>,
}

impl Holders {
    fn start(config: ClientConfig, count: usize) -> Result<Holders, BenchError> {
        let (take, mut to_take) = tokio::sync::mpsc::unbounded_channel();
        let (taking, taken) = channel();
        let (connecting, connected) = channel();
        let hold = move || async move {
            let mut clients = Vec::new();
            for _ in 0..count {
                let client = Client::connect(config.clone()).await.map_err(|why| why.to_string())?;
                client.use_tokens(None);
                tokio::task::spawn_local(client.local().watch_tokens());
                clients.push(client);
            }
            let locals: Vec<_> = clients.iter().map(Client::local).collect();
            let _ = connecting.send(clients); // whoever waits knows why nobody does any more
            while let Some(inode) = to_take.recv().await {
                let mut all = JoinSet::new();
                for local in &locals {
                    let local = local.clone();
                    all.spawn_local(async move {
                        local.take_tokens(&[inode]).await;
                    });
                }
                all.join_all().await;
                let held = locals.iter().map(|local| local.client().counters().tokens as usize);
                let _ = taking.send(held.sum());
            }
            for local in &locals {
                local.client().shutdown();
                local.end().await;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("holders".into());
        let thread = thread.spawn(move || OnThread::new().map_err(|why| why.to_string())?.run(hold()))?;
        let Ok(clients) = connected.recv() else {
            ended(thread)?;
            return Err("there are no holders".into());
        };
        Ok(Holders {
            clients,
            take,
            taken,
            thread,
        })
    }

    /// Has all of them take a token of an inode. How many tokens there are then.
    fn take(&self, inode: InodeRef) -> Result<usize, BenchError> {
        self.take.send(inode)?;
        Ok(self.taken.recv()?)
    }

    /// Requests they have made, and tokens they were asked for.
    fn counters(&self) -> (u64, u64) {
        let counters = self.clients.iter().map(|client| client.counters());
        counters.fold((0, 0), |(rpcs, recalls), of| (rpcs + of.rpcs, recalls + of.recalls))
    }

    fn stop(self) -> Result<(), BenchError> {
        drop(self.take);
        ended(self.thread)
    }
}

fn ended(thread: JoinHandle<Result<(), String>>) -> Result<(), BenchError> {
    let ended = thread.join().map_err(|_| "the holders' thread failed")?;
    Ok(ended?)
}

/// Two mounts look at a file and write to it in turn.
fn in_turn(mounts: &Mounts, turns: usize, found: &mut Findings<'_>) -> Result<(), BenchError> {
    const FIRST: usize = 10;
    let dirs = [Server::Inside, Server::Shm].map(|server| mounts.root(server, Cache::Strict));
    File::create_new(dirs[0].join("in-turn"))?.set_len(4096)?;
    let paths = dirs.each_ref().map(|dir| dir.join("in-turn"));
    let files = [0, 1].map(|side| OpenOptions::new().write(true).open(&paths[side]));
    let recalls = || {
        let [first, second] = dirs.each_ref().map(|dir| Counters::of(dir));
        Ok::<_, BenchError>(first?.recalls + second?.recalls)
    };
    let turn = |number: usize| {
        let side = number % 2;
        paths[side].symlink_metadata()?;
        let file = files[side].as_ref().map_err(|why| why.kind())?;
        file.write_all_at(&[number as u8; 4096], 0)
    };
    (0..FIRST).try_for_each(turn)?;
    let (before, start) = (recalls()?, Instant::now());
    (FIRST..FIRST + turns).try_for_each(turn)?;
    let (took, recalls) = (start.elapsed(), recalls()? - before);
    found.note(format!(
        "{turns} turns in turn, after the first {FIRST}, took {:.2} s",
        took.as_secs_f64()
    ));
    let name = format!("recalls in {turns} turns of two mounts");
    found.bounded(&name, Unit::Requests, &Samples::exact(recalls as f64), AtMost(0.0));
    Ok(())
}

/// A mount that has tokens is killed.
fn killed(mounts: &Mounts, rounds: usize, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let inside = mounts.root(Server::Inside, Cache::Strict);
    let mut waited = Vec::new();
    for round in 0..rounds.min(3) {
        let name = format!("killed-{round}");
        let file = File::create_new(inside.join(&name))?;
        let mut holder = mounts.one_more(&name)?;
        let dir = holder.at(Cache::Strict);
        let end = Instant::now() + LOOKING;
        while Instant::now() < end {
            dir.join(&name).symlink_metadata()?;
        }
        if Counters::of(&dir)?.tokens == 0 {
            return Err("the mount that is to be killed has no token".into());
        }
        holder.kill()?;
        let start = Instant::now();
        file.write_all_at(&[1; 4096], 0)?;
        waited.push(start.elapsed().as_secs_f64() * 1e3);
    }
    found.bounded(
        "write after a holder was killed",
        Unit::Ms,
        &Samples::new(waited),
        AtMost(2200.0),
    );
    Ok(())
}
