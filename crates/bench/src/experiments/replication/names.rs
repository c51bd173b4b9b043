//! Names, and files of several clients.

use super::place::{Place, REPLICAS, User, shown, top};
use crate::BenchError;
use crate::busy_polling::BusyPolling;
use crate::report::Target::AtLeast;
use crate::report::{Findings, Unit};
use crate::samples::{Samples, Timed, each_in_turn, rate};
use crate::suite::Context;
use polvo_client::OpenFile;
use polvo_proto::{FsError, InodeRef, WriteAt};
use polvo_testbed::cluster::new_file;
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const CLIENTS: usize = 8;
/// What is left of the throughput of creations and removals with a mirror.
const NAMES_LEFT: f64 = 0.63;
/// Of that of programs that do a bit of everything.
const FILES_LEFT: f64 = 0.85;
/// Files that a mail or file server has in each directory.
const FILES: usize = 32;

/// Measures the places with clients over the provider.
pub fn run(
    places: &[Place],
    provider: &'static str,
    context: &Context<'_>,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let _budgets = BusyPolling::by_threads(if provider == "shm" { 2 } else { 3 });
    let here = OnThread::on_core(Some(MEASURING))?;
    let mut crowds = Vec::new();
    for place in places {
        crowds.push(Crowd::new(place, provider, &here)?);
    }
    let (rounds, ops) = (context.effort.rounds, context.effort.ops);
    looked_up(&mut crowds, provider, context, &here, found)?;
    let samples = each_in_turn(rounds, &mut crowds, |crowd| {
        let create = here.run(crowd.each(ops, Task::Create))?;
        Ok([create, here.run(crowd.each(ops, Task::Unlink))?])
    })?;
    for (which, what) in ["create", "unlink"].into_iter().enumerate() {
        let samples: Vec<&Samples> = samples.iter().map(|samples| &samples[which]).collect();
        found_rates(
            &format!("{provider} {what}, {CLIENTS} clients"),
            &samples,
            NAMES_LEFT,
            found,
        );
    }
    let samples = each_in_turn(rounds, &mut crowds, |crowd| {
        let files = here.run(crowd.each(ops / 10, Task::FileServer))?;
        Ok([files, here.run(crowd.each(ops / 10, Task::MailServer))?])
    })?;
    for (which, what) in ["file server", "mail server"].into_iter().enumerate() {
        let samples: Vec<&Samples> = samples.iter().map(|samples| &samples[which]).collect();
        found_rates(
            &format!("{provider} {what}, {CLIENTS} clients"),
            &samples,
            FILES_LEFT,
            found,
        );
    }
    for crowd in crowds {
        here.run(crowd.end())?;
    }
    Ok(())
}

/// Samples: with each number of replicas.
fn found_rates(what: &str, samples: &[&Samples], left: f64, found: &mut Findings<'_>) {
    let base = format!("{what}, {}", shown(1));
    found.figure(&base, Unit::PerS, samples[0]);
    for (replicas, samples) in REPLICAS.into_iter().zip(samples).skip(1) {
        // the second mirror is judged where there is nothing but one write
        let target = (replicas == 2).then_some(AtLeast(left));
        found.against(
            &format!("{what}, {}", shown(replicas)),
            Unit::PerS,
            samples,
            &base,
            target,
        );
    }
}

/// Names that somebody else has made, each looked up once by a client that has seen nothing yet.
fn looked_up(
    crowds: &mut [Crowd<'_>],
    provider: &str,
    context: &Context<'_>,
    here: &OnThread,
    found: &mut Findings<'_>,
) -> Result<(), BenchError> {
    let (rounds, ops) = (context.effort.rounds, context.effort.ops / 4);
    let samples = each_in_turn(rounds, crowds, |crowd| {
        let client = crowd.place.client(provider)?;
        let (maker, dir) = (crowd.users[0].local.clone(), crowd.users[0].dir);
        let ns = here.run(async {
            let names: Vec<Vec<u8>> = (0..ops).map(|n| format!("seen-{n}").into_bytes()).collect();
            for name in &names {
                maker.create(dir, name, new_file()).await?;
            }
            let local = client.local();
            local.get_attr(dir).await?; // it connects
            let mut timed = Timed::new(ops);
            for n in timed.by_ref() {
                std::hint::black_box(local.lookup(dir, &names[n]).await?);
            }
            let ns = timed.ns_per_op();
            for name in &names {
                maker.unlink(dir, name).await?;
            }
            Ok::<_, FsError>(ns)
        })?;
        client.shutdown();
        Ok([ns])
    })?;
    let base = format!("{provider} lookup of a name not seen before, {}", shown(1));
    for (replicas, [samples]) in REPLICAS.into_iter().zip(&samples) {
        match replicas {
            1 => found.figure(&base, Unit::Ns, samples),
            n => {
                let name = format!("{provider} lookup of a name not seen before, {}", shown(n));
                found.against(&name, Unit::Ns, samples, &base, None)
            }
        };
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Task {
    Create,
    Unlink,
    FileServer,
    MailServer,
}

/// Clients that take turns on one thread.
struct Crowd<'a> {
    place: &'a Place,
    users: Vec<Rc<User>>,
}

impl<'a> Crowd<'a> {
    fn new(place: &'a Place, provider: &str, here: &OnThread) -> Result<Crowd<'a>, BenchError> {
        let top = top(place.primary())?;
        let mut users = Vec::new();
        for n in 0..CLIENTS {
            let client = place.client(provider)?;
            users.push(Rc::new(here.run(async {
                let user = User::new(client, top, &format!("{provider}-{n}")).await?;
                for n in 0..FILES {
                    write_new(&user, n, 0, 128 << 10).await?;
                    write_new(&user, n, 1, 16 << 10).await?;
                }
                Ok::<_, FsError>(user)
            })?));
        }
        Ok(Crowd { place, users })
    }

    /// Every client does its share of so many operations; operations a second of all together.
    async fn each(&self, ops: usize, task: Task) -> Result<f64, BenchError> {
        let start = Instant::now();
        let each = ops.div_ceil(CLIENTS);
        let working = self.users.iter().cloned().map(|user| {
            tokio::task::spawn_local(async move {
                match task {
                    Task::Create => {
                        for n in 0..each {
                            user.local.create(user.dir, &name(n), new_file()).await?;
                        }
                        Ok::<_, FsError>(each)
                    }
                    Task::Unlink => {
                        for n in 0..each {
                            user.local.unlink(user.dir, &name(n)).await?;
                        }
                        Ok(each)
                    }
                    Task::FileServer => file_server(&user, each).await,
                    Task::MailServer => mail_server(&user, each).await,
                }
            })
        });
        let mut done = 0;
        for work in working.collect::<Vec<_>>() {
            done += work.await??;
        }
        Ok(rate(start.elapsed(), done))
    }

    async fn end(self) -> Result<(), BenchError> {
        for user in self.users {
            for n in 0..FILES {
                for kind in 0..2 {
                    user.local.unlink(user.dir, &file_name(n, kind)).await?;
                }
            }
            Rc::into_inner(user).ok_or("a client is still used")?.end();
        }
        Ok(())
    }
}

fn name(n: usize) -> Vec<u8> {
    format!("name-{n}").into_bytes()
}

/// Of a file of a file server (0) or of a mail server (1).
fn file_name(n: usize, kind: usize) -> Vec<u8> {
    format!("file-{kind}-{n}").into_bytes()
}

async fn write_new(user: &User, n: usize, kind: usize, len: usize) -> Result<Arc<OpenFile>, FsError> {
    let (_, file) = user
        .local
        .create_open(user.dir, &file_name(n, kind), new_file())
        .await?;
    user.local.write(&file, 0, &vec![n as u8; len]).await?;
    Ok(file)
}

async fn open(user: &User, n: usize, kind: usize) -> Result<Arc<OpenFile>, FsError> {
    let attr = user.local.lookup(user.dir, &file_name(n, kind)).await?;
    let (ino, generation) = (attr.ino, attr.generation);
    user.local.open(InodeRef { ino, generation }).await
}

async fn read_whole(user: &User, file: &OpenFile) -> Result<(), FsError> {
    let len = user.local.get_attr(file.inode()).await?.size as usize;
    let mut bytes = vec![0; len];
    match user.local.read(file, 0, &mut bytes).await? == len {
        true => Ok(()),
        false => Err(FsError::Io("a file is shorter than it was".into())),
    }
}

async fn append(user: &User, file: &OpenFile, len: usize) -> Result<(), FsError> {
    let at = WriteAt::End;
    user.local.write_at(file, at, &vec![3; len]).await.map(drop)
}

/// Filebench's fileserver, for one thread: so many rounds of six operations; returns how many those are.
async fn file_server(user: &User, rounds: usize) -> Result<usize, FsError> {
    for n in 0..rounds {
        let [first, second, third] = [0, 11, 23].map(|by| (n + by) % FILES);
        user.local.unlink(user.dir, &file_name(first, 0)).await?;
        drop(write_new(user, first, 0, 128 << 10).await?);
        append(user, &*open(user, second, 0).await?, 16 << 10).await?;
        read_whole(user, &*open(user, third, 0).await?).await?;
        user.local.lookup(user.dir, &file_name(second, 0)).await?;
    }
    Ok(rounds * 6)
}

/// Filebench's varmail, for one thread: so many rounds of six operations.
async fn mail_server(user: &User, rounds: usize) -> Result<usize, FsError> {
    for n in 0..rounds {
        let [first, second, third] = [0, 11, 23].map(|by| (n + by) % FILES);
        user.local.unlink(user.dir, &file_name(first, 1)).await?;
        let file = write_new(user, first, 1, 16 << 10).await?;
        user.local.sync(Some(&file)).await?;
        let file = open(user, second, 1).await?;
        read_whole(user, &file).await?;
        append(user, &file, 16 << 10).await?;
        user.local.sync(Some(&file)).await?;
        read_whole(user, &*open(user, third, 1).await?).await?;
    }
    Ok(rounds * 6)
}
