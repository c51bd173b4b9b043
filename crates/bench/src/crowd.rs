//! Clients of one node that take turns on one thread, each with a connection and a file of its own: the load is the same
//! however many there are, and two processors are enough for them and the node.

use crate::BenchError;
use crate::samples::{Samples, Timed};
use crate::suite::Context;
use polvo_client::{Buffer, Client, LocalClient, OpenFile, Transfers};
use polvo_format::FileKind;
use polvo_proto::{FsError, InodeRef, NewFile, XattrMode};
use polvo_testbed::cluster::{BenchNode, new_file, root};
use polvo_testbed::cores::MEASURING;
use polvo_testbed::on_thread::OnThread;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Largest operation, bytes.
const LARGEST: usize = 16 * MIB;

/// Reading or writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Access {
    /// Reading.
    Read,
    /// Writing, durably.
    Write,
}

impl Access {
    /// Both.
    pub const BOTH: [Access; 2] = [Access::Read, Access::Write];
}

/// Where an application has its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// In memory of its own.
    Own,
    /// There, and it copies them from or to somewhere else besides.
    OwnAndCopied,
    /// In a buffer that nodes can reach.
    Registered,
}

struct Member {
    client: Arc<Client>,
    local: Rc<LocalClient>,
    file: Arc<OpenFile>,
    name: Vec<u8>,
    /// Made once, so that a node on this host maps it once.
    buffer: Rc<Buffer>,
}

/// What some operations took.
pub struct Taken {
    /// From the first to the last.
    pub time: Duration,
    /// Time of a processor that the node's reactor used for them. A tick of its housekeeping may have fallen into it.
    pub server: Duration,
    /// How many.
    pub ops: usize,
}

impl Taken {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.time.as_secs_f64()
    }

    /// Nanoseconds an operation.
    pub fn ns(&self) -> f64 {
        self.time.as_nanos() as f64 / self.ops as f64
    }

    /// Gigabytes (10^9) a second of operations of so many bytes.
    pub fn gbps(&self, size: usize) -> f64 {
        size as f64 / self.ns()
    }

    /// Nanoseconds of the reactor's processor an operation.
    pub fn server_ns_per_op(&self) -> f64 {
        self.server.as_nanos() as f64 / self.ops as f64
    }
}

/// Touches nearly all of the pools of a cluster: a mapping's first touch of a page is a fault of the operating system, which
/// is not what is measured.
pub fn touch(nodes: &[BenchNode], pool_len: u64) -> Result<(), BenchError> {
    for node in nodes {
        let client = node.internal();
        let top = root(&client)?;
        client.run(|c| async move {
            let directory = NewFile {
                kind: FileKind::Directory,
                mode: 0o755,
                ..new_file()
            };
            let made = c.create(top, b"touch", directory).await?;
            let dir = InodeRef {
                ino: made.ino,
                generation: made.generation,
            };
            // inodes, and with them data, go to the node that the client is colocated with
            c.set_xattr(dir, b"polvo.placement", b"local", XattrMode::Any).await?;
            let (_, file) = c.create_open(dir, b"touch", new_file()).await?;
            let chunk = vec![1u8; MIB];
            for at in (0..pool_len * 9 / 10).step_by(chunk.len()) {
                match c.write(&file, at, &chunk).await {
                    Ok(_) => {}
                    Err(FsError::NoSpace) => break,
                    Err(error) => return Err(error),
                }
            }
            drop(file);
            c.unlink(dir, b"touch").await?;
            c.rmdir(top, b"touch").await
        })?;
        client.shutdown();
    }
    Ok(())
}

/// The clients.
pub struct Crowd<'a> {
    node: &'a BenchNode,
    here: OnThread,
    members: Vec<Member>,
    file_len: u64,
    /// What it took to write half a pool through a fresh mapping, where the clients have one.
    pub entering: Option<Taken>,
}

/// A server that has answered its last request has gone to sleep.
const CALM: Duration = Duration::from_millis(2);

impl<'a> Crowd<'a> {
    /// So many clients over `tcp` or `shm`, each with a file of `file_len` bytes. Clients that store to the pool themselves have
    /// done so all over it: a process's first store to a page is a fault, as it is for the node (see [`touch`]).
    pub fn new(
        node: &'a BenchNode,
        provider: &str,
        clients: usize,
        transfers: Transfers,
        file_len: u64,
    ) -> Result<Crowd<'a>, BenchError> {
        let here = OnThread::on_core(Some(MEASURING))?;
        let mut members = Vec::with_capacity(clients);
        for number in 0..clients {
            let client = node.external_by(provider, transfers)?;
            client.start_maintenance();
            let dir = root(&client)?;
            let name = format!("{provider}-{number}-{:?}", client.session()).into_bytes();
            let (local, file) = here.run(async {
                let local = client.local();
                let (_, file) = local.create_open(dir, &name, new_file()).await?;
                let chunk = vec![number as u8; MIB];
                for at in (0..file_len).step_by(MIB) {
                    local.write(&file, at, &chunk).await?;
                }
                Ok::<_, FsError>((local, file))
            })?;
            let buffer = Rc::new(client.buffer(LARGEST)?);
            buffer.write(0, &vec![5; LARGEST]);
            members.push(Member {
                client,
                local,
                file,
                name,
                buffer,
            });
        }
        let mut crowd = Crowd {
            node,
            here,
            members,
            file_len,
            entering: None,
        };
        if provider == "shm" && transfers == Transfers::Client {
            let pool = node.node().colocated().pool().len() as usize / MIB;
            let size = MIB.min(file_len as usize);
            crowd.entering = Some(crowd.run(Access::Write, Bytes::Own, size, pool / 2)?);
            crowd.run(Access::Write, Bytes::Own, size, pool * 3 / 2)?;
        }
        Ok(crowd)
    }

    /// Operations of `size` bytes at places that follow each other, all clients at a time; about `ops` in all.
    pub fn run(&self, access: Access, bytes: Bytes, size: usize, ops: usize) -> Result<Taken, BenchError> {
        let each = ops.div_ceil(self.members.len());
        let places = (self.file_len / size as u64).max(1);
        let server = self.node.processor_time()?;
        let start = Instant::now();
        let ops = self.here.run(async {
            let working: Vec<_> = self
                .members
                .iter()
                .map(|member| {
                    let (local, file, buffer) = (member.local.clone(), member.file.clone(), member.buffer.clone());
                    tokio::task::spawn_local(async move {
                        let (mut own, mut other) = (vec![7u8; size], vec![8u8; size]);
                        let registered = (bytes == Bytes::Registered).then_some(&*buffer);
                        let mut timed = Timed::new(each);
                        for op in timed.by_ref() {
                            // a stride that leaves neighbours alone
                            let at = (op as u64).wrapping_mul(7919) % places * size as u64;
                            let moved = match (access, registered) {
                                (Access::Read, None) => local.read(&file, at, &mut own).await?,
                                (Access::Read, Some(buffer)) => local.read_into(&file, at, buffer, 0, size).await?,
                                (Access::Write, None) => local.write(&file, at, &own).await?,
                                (Access::Write, Some(buffer)) => local.write_from(&file, at, buffer, 0, size).await?,
                            };
                            if moved != size {
                                return Err(FsError::NoSpace);
                            }
                            if bytes == Bytes::OwnAndCopied {
                                other.copy_from_slice(&own);
                                std::hint::black_box(&other);
                            }
                        }
                        Ok::<_, FsError>(timed.done())
                    })
                })
                .collect();
            let mut done = 0;
            for work in working {
                done += work.await??;
            }
            Ok::<_, BenchError>(done)
        })?;
        let time = start.elapsed();
        std::thread::sleep(CALM);
        Ok(Taken {
            time,
            server: self.node.processor_time()?.saturating_sub(server),
            ops,
        })
    }

    /// Removes the files and ends the sessions.
    pub fn stop(self) -> Result<(), BenchError> {
        for Member {
            client,
            local,
            file,
            name,
            buffer,
        } in self.members
        {
            let dir = root(&client)?;
            self.here.run(async {
                drop(file);
                local.unlink(dir, &name).await
            })?;
            self.here.run(async { drop(local) });
            drop(buffer);
            client.shutdown();
        }
        Ok(())
    }
}

/// How many operations of a size make a measurement: as many as asked for, of large ones so many that they move as much as
/// `bytes`.
pub fn ops_of(size: usize, ops: usize, bytes: u64) -> usize {
    ops.min((bytes / size as u64) as usize).max(8)
}

/// Several ways to do the same in turn, `rounds` times: what disturbs the machine for a while disturbs all of them.
pub fn in_turn<const N: usize>(
    context: &Context<'_>,
    ways: [&dyn Fn() -> Result<Taken, BenchError>; N],
    figure: impl Fn(&Taken) -> f64,
) -> Result<[Samples; N], BenchError> {
    let mut figures: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..context.effort.rounds {
        for (way, figures) in ways.iter().zip(&mut figures) {
            figures.push(figure(&way()?));
        }
    }
    Ok(figures.map(Samples::new))
}

/// A size as people write it.
pub fn shown(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..MIB => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_client::Thresholds;

    /// What a node's processor does shows, and what it does not do does not.
    #[test]
    fn a_nodes_processor_works_for_reads_that_it_directs_and_not_for_others() {
        const OPS: usize = 400;
        let scratch = std::env::temp_dir();
        let node = BenchNode::start(&scratch, 64 << 20).unwrap();
        let server_time = |transfers| {
            let crowd = Crowd::new(&node, "shm", 2, transfers, MIB as u64).unwrap();
            let taken = crowd.run(Access::Read, Bytes::Own, 16 << 10, OPS).unwrap();
            assert_eq!(taken.ops, OPS);
            crowd.stop().unwrap();
            taken.server_ns_per_op()
        };
        let directed = server_time(Transfers::Server(Thresholds::default()));
        let active = server_time(Transfers::Client);
        // 16 KiB cannot be copied in less; a tick of housekeeping may have fallen into the other
        assert!(
            directed > 500.0 && active < directed / 2.0,
            "{directed} ns, {active} ns"
        );
        node.stop().unwrap();
    }
}
