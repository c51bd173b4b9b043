//! The mount against the library and against tmpfs: the same operations by system calls.

use crate::{
    Effort, baseline,
    cluster::{BenchError, BenchNode},
    report::{Report, gbps, median},
};
use polvo_fuse::{Mount, MountOptions};
use std::{os::unix::fs::FileExt, path::Path, time::Instant};

/// Mounts the node inside this process and measures through the kernel.
pub fn mounted(node: &BenchNode, scratch: &Path, effort: Effort, report: &mut Report) -> Result<(), BenchError> {
    let point = scratch.join("mnt");
    std::fs::create_dir(&point)?;
    let client = node.internal();
    let mount = Mount::new(client.clone(), &point, MountOptions::default())?;
    let measured = through_kernel(&point, scratch, effort, report);
    mount.unmount(false)?;
    client.shutdown();
    measured
}

fn through_kernel(point: &Path, scratch: &Path, effort: Effort, report: &mut Report) -> Result<(), BenchError> {
    let (len, n) = (effort.file_len, effort.rounds);
    let ops = effort.ops / 4;
    let on_tmpfs = baseline::tmpfs_file(scratch, len)?;
    let on_mount = baseline::tmpfs_file(point, len)?;
    let read = median(n, || baseline::pread(&on_mount, len, ops))?;
    let of = ["library internal 4 KiB random read", "tmpfs pread 4 KiB random"];
    report.row("mount 4 KiB random read", read, "ns", &of);
    let write = median(n, || baseline::pwrite(&on_mount, len, ops))?;
    let of = ["library internal 4 KiB durable overwrite", "tmpfs pwrite 4 KiB random"];
    report.row("mount 4 KiB durable overwrite", write, "ns", &of);

    let mut chunk = vec![0u8; 1 << 20];
    for (what, writing) in [("read", false), ("write", true)] {
        let mut pass = |file: &std::fs::File| {
            median(n, || {
                let start = Instant::now();
                for at in (0..len).step_by(chunk.len()) {
                    if writing {
                        file.write_all_at(&chunk, at)?;
                    } else {
                        file.read_exact_at(&mut chunk, at)?;
                    }
                }
                Ok::<_, std::io::Error>(gbps(start.elapsed(), len))
            })
        };
        let (base, value) = (pass(&on_tmpfs)?, pass(&on_mount)?);
        let tmpfs = format!("tmpfs 1 MiB {what}");
        report.baseline(&tmpfs, base, "GB/s");
        let of = [&*format!("library internal 1 MiB {what}"), &tmpfs];
        report.row(&format!("mount 1 MiB {what}"), value, "GB/s", &of);
    }
    drop((on_tmpfs, on_mount));
    std::fs::remove_file(scratch.join("baseline"))?;
    std::fs::remove_file(point.join("baseline"))?;

    let dir = point.join("names");
    std::fs::create_dir(&dir)?;
    let ours = baseline::metadata(&dir, ops)?;
    for (what, value) in ["create", "stat", "unlink"].into_iter().zip(ours) {
        let of = [&*format!("library internal {what}"), &format!("tmpfs {what}")];
        report.row(&format!("mount {what}"), value, "1/s", &of);
    }
    Ok(())
}
