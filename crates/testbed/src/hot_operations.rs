//! Carries out one of the hottest operations again and again through a colocated client, for profilers and instruction
//! counters. Only [`measured`] is to be counted: `valgrind --tool=callgrind --toggle-collect='*hot_operations::measured*'`.

use crate::Failure;
use crate::cluster::{BenchNode, Scratch, new_file, pool_len, tick};
use clap::ValueEnum;
use polvo_client::{LocalClient, OpenFile};
use polvo_format::Ino;
use polvo_proto::{Durability, FsError, InodeRef};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the file that is read and written.
const FILE: u64 = 16 << 20;

/// The ten hottest operations.
#[derive(Clone, Copy, ValueEnum)]
pub enum Operation {
    /// 4 KiB at a random place.
    Read,
    /// 4 KiB at a random place, durable.
    Overwrite,
    /// 64 bytes at a random place, durable.
    SmallOverwrite,
    /// 4 KiB at the end.
    Append,
    /// 1 MiB at a random place.
    LargeOverwrite,
    /// A name to attributes.
    Lookup,
    /// Attributes.
    Stat,
    /// Opening and closing a file that was open before.
    Open,
    /// An empty file.
    Create,
    /// Removing an empty file.
    Unlink,
}

/// Operations between two grace ticks. Leases are so long that there are no others: how much of what was freed can be used
/// again must not depend on the time.
const TICK_EVERY: u64 = 256;

/// Places to read and write at: a linear congruence over the pages of the file.
fn place(n: u64, len: u64) -> u64 {
    let pages = (FILE - len) / 4096 + 1;
    n.wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
        % pages
        * 4096
}

struct Stage {
    client: Rc<LocalClient>,
    root: InodeRef,
    file: Arc<OpenFile>,
    names: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    operation: Operation,
}

/// What is counted.
#[inline(never)]
fn measured(stage: &mut Stage, n: u64) -> Result<(), FsError> {
    use std::task::{Context, Poll, Waker};
    let mut operation = std::pin::pin!(one(stage, n));
    match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(FsError::Io("a colocated client has nothing to wait for".into())),
    }
}

async fn one(stage: &mut Stage, n: u64) -> Result<(), FsError> {
    let Stage {
        client,
        root,
        file,
        names,
        bytes,
        operation,
    } = stage;
    let name = &names[n as usize % names.len()];
    let inode = file.inode();
    match operation {
        Operation::Read => {
            client.read(file, place(n, 4096), &mut bytes[..4096]).await?;
        }
        Operation::Overwrite => {
            client.write(file, place(n, 4096), &bytes[..4096]).await?;
        }
        Operation::SmallOverwrite => {
            client.write(file, place(n, 4096) + 100, &bytes[..64]).await?;
        }
        Operation::Append => {
            client.append(file, &bytes[..4096]).await?;
        }
        Operation::LargeOverwrite => {
            client.write(file, place(n, 1 << 20), bytes).await?;
        }
        Operation::Lookup => {
            // in no order, as programs do: neighbours in the log would come by themselves
            let name = &names[(n as usize).wrapping_mul(7919) % names.len()];
            client.lookup(*root, name).await?;
        }
        Operation::Stat => {
            client.get_attr(inode).await?;
        }
        Operation::Open => {
            client.open(inode).await?;
        }
        Operation::Create => {
            client.create(*root, name, new_file()).await?;
        }
        Operation::Unlink => client.unlink(*root, name).await?,
    }
    Ok(())
}

/// Carries out one operation so often, in a region with so many replicas.
pub fn run(scratch: &Path, operation: Operation, times: u64, replicas: u8) -> Result<(), Failure> {
    let scratch = Scratch::new(scratch)?;
    let mut nodes = BenchNode::start_replicas(scratch.path(), pool_len(FILE), replicas, Durability::default(), "shm")?;
    let mirrors = nodes.split_off(1);
    let node = nodes.pop().ok_or("one node was asked for at least")?;
    let client = node.internal();
    let served = node.node();
    let done: Result<(), Failure> = client.run(|client| async move {
        let root = client.resolve(Ino::ROOT).await?;
        let (_, file) = client.create_open(root, b"file", new_file()).await?;
        let bytes = vec![7; 1 << 20];
        // the whole pool is touched: first touches are faults of the operating system
        for at in (0..pool_len(FILE)).step_by(bytes.len()) {
            client.write(&file, at % FILE, &bytes).await?;
        }
        // and the file lies as scattered as overwriting leaves it
        for n in 0..FILE / 4096 {
            if n % TICK_EVERY == 0 {
                tick(&client, served).await;
            }
            client
                .write(&file, n.wrapping_mul(7919) % (FILE / 4096) * 4096, &bytes[..4096])
                .await?;
        }
        // what comes first is no more measured than it is in a system that runs
        let warm = times / 4;
        let names: Vec<Vec<u8>> = (0..times + warm).map(|n| format!("name-{n:07}").into_bytes()).collect();
        if matches!(operation, Operation::Lookup | Operation::Unlink) {
            for name in &names {
                client.create(root, name, new_file()).await?;
            }
        }
        let mut stage = Stage {
            client,
            root,
            file,
            names,
            bytes,
            operation,
        };
        for n in 0..warm {
            one(&mut stage, n).await?;
        }
        let start = std::time::Instant::now();
        for n in warm..warm + times {
            if n % TICK_EVERY == 0 {
                tick(&stage.client, served).await;
            }
            match replicas {
                1 => measured(&mut stage, n)?,
                // a mirror may be told something else at the moment
                _ => one(&mut stage, n).await?,
            }
        }
        println!("{:.1} ns each", start.elapsed().as_nanos() as f64 / times as f64);
        Ok(())
    });
    done?;
    client.shutdown();
    node.stop()?;
    mirrors.into_iter().try_for_each(BenchNode::stop)
}
