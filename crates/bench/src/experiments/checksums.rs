//! What checksums of file data cost: to make them with each write, and to verify them at each read.

use crate::BenchError;
use crate::crowd::touch;
use crate::report::{Findings, Unit};
use crate::samples::in_turn;
use crate::suite::{Context, Experiment};
use polvo_client::Client;
use polvo_proto::InodeRef;
use polvo_testbed::cluster::{BenchNode, new_file, root, tick};
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "checksums",
    title: "Checksums of file data",
    about: "The same reads and writes of one client at two nodes, in turn: one whose pool has no checksums of file data, and one whose \
            pool has. At the latter, reads are measured as they are by default, and with a client that verifies all that it reads.",
    run,
};

const POOL: u64 = 1 << 30;
/// The file that is read and overwritten, bytes.
const FILE: usize = 16 << 20;
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A client and its file.
struct Peer {
    client: Arc<Client>,
    file: InodeRef,
}

impl Peer {
    fn new(client: Arc<Client>, name: &str) -> Result<Peer, BenchError> {
        let dir = root(&client)?;
        let name = name.to_string();
        let file = client.run(|c| async move {
            let (made, open) = c.create_open(dir, name.as_bytes(), new_file()).await?;
            for at in (0..FILE).step_by(MIB) {
                c.write(&open, at as u64, &vec![7; MIB]).await?;
            }
            Ok::<_, polvo_proto::FsError>(InodeRef {
                ino: made.ino,
                generation: made.generation,
            })
        })?;
        Ok(Peer { client, file })
    }

    /// Bytes a second, in GB, of so many reads or writes of `len` bytes, from front to back and again.
    fn stream(&self, node: &BenchNode, write: bool, len: usize, ops: usize) -> Result<f64, BenchError> {
        let (file, inner) = (self.file, node.node().clone());
        let took = self.client.run(|c| async move {
            tick(&c, &inner).await;
            let open = c.open(file).await?;
            let mut bytes = vec![9; len];
            let start = Instant::now();
            for n in 0..ops {
                let at = (n * len % FILE) as u64;
                match write {
                    true => c.write(&open, at, &bytes).await?,
                    false => c.read(&open, at, &mut bytes).await?,
                };
            }
            Ok::<_, polvo_proto::FsError>(start.elapsed())
        })?;
        Ok((ops * len) as f64 / took.as_secs_f64() / 1e9)
    }
}

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    let (plain_dir, summed_dir) = (context.scratch.join("plain"), context.scratch.join("summed"));
    std::fs::create_dir_all(&plain_dir)?;
    std::fs::create_dir_all(&summed_dir)?;
    let plain = BenchNode::start_with(&plain_dir, POOL, false)?;
    let summed = BenchNode::start_with(&summed_dir, POOL, true)?;
    touch(std::slice::from_ref(&plain), POOL)?;
    touch(std::slice::from_ref(&summed), POOL)?;
    for way in ["in the node", "shm", "tcp"] {
        let client = |node: &BenchNode| match way {
            "in the node" => Ok(node.internal()),
            provider => node.external(provider),
        };
        let name = format!("file {way}");
        let without = Peer::new(client(&plain)?, &name)?;
        let with = Peer::new(client(&summed)?, &name)?;
        for (write, len) in [(true, PAGE), (true, MIB), (false, PAGE), (false, MIB)] {
            // overwritten pages are used again only after the measurement
            let ops = match len {
                PAGE => context.effort.ops.min(POOL as usize / 4 / PAGE),
                _ => (context.effort.ops / 64).clamp(16, POOL as usize / 4 / MIB),
            };
            let what = format!(
                "{} of {} {way}",
                if write { "writes" } else { "reads" },
                if len == PAGE { "4 KiB" } else { "1 MiB" }
            );
            let verified = |verify| {
                with.client.verify_reads(verify);
                let figure = with.stream(&summed, write, len, ops);
                with.client.verify_reads(false);
                figure
            };
            let [base, summed_up, verifying] = in_turn(
                context.effort.rounds,
                [
                    &mut || without.stream(&plain, write, len, ops),
                    &mut || verified(false),
                    &mut || verified(true),
                ],
            )?;
            found.figure(&what, Unit::GbPerS, &base);
            found.against(
                &format!("{what}, with checksums"),
                Unit::GbPerS,
                &summed_up,
                &what,
                None,
            );
            if !write {
                found.against(&format!("{what}, verified"), Unit::GbPerS, &verifying, &what, None);
            }
        }
        without.client.shutdown();
        with.client.shutdown();
    }
    plain.stop()?;
    summed.stop()
}
