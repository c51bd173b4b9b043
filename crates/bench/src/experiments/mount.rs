//! The mount against the library and against tmpfs: the same operations by system calls.

use super::system_calls::{self, Measured};
use crate::BenchError;
use crate::report::Findings;
use crate::suite::{Context, Experiment};
use polvo_fuse::{Mount, MountOptions};
use polvo_testbed::cluster::{BenchNode, pool_len};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "mount",
    title: "The mount",
    about: "A colocated mount (FUSE), by system calls, beside the same calls on tmpfs and, where the library experiment ran \
            before, beside the client library below the mount. Every operation is durable when it returns.",
    run,
};

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    if !std::path::Path::new("/dev/fuse").exists() {
        found.note("Left out: there is no /dev/fuse.");
        return Ok(());
    }
    let node = BenchNode::start(context.scratch, pool_len(context.effort.file_len))?;
    let point = context.scratch.join("mnt");
    std::fs::create_dir(&point)?;
    let client = node.internal();
    let mount = Mount::new(client.clone(), &point, MountOptions::default())?;
    let library = |operation: &str| match operation {
        "4 KiB random read" => Some("library internal 4 KiB random read"),
        "4 KiB random write" => Some("library internal 4 KiB durable overwrite"),
        "1 MiB reads" => Some("library internal 1 MiB reads"),
        "1 MiB writes and fdatasync" => Some("library internal 1 MiB writes"),
        "create" => Some("library internal create"),
        "stat" => Some("library internal stat"),
        "unlink" => Some("library internal unlink"),
        _ => None,
    };
    let dirs = [context.scratch.to_owned(), point.clone()];
    let measured = system_calls::measure(&dirs, context.effort.file_len, context).map(|all| {
        for Measured {
            operation,
            unit,
            samples,
        } in all
        {
            let (name, tmpfs) = (format!("mount {operation}"), format!("tmpfs {operation}"));
            found.figure(&tmpfs, unit, &samples[0]);
            found.against(&name, unit, &samples[1], &tmpfs, None);
            if let Some(library) = library(operation) {
                found.against(&name, unit, &samples[1], library, None);
            }
        }
    });
    mount.unmount(false)?;
    client.shutdown();
    node.stop()?;
    std::fs::remove_dir(&point)?;
    measured
}
