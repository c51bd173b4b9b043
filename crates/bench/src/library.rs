//! The client library against memory, tmpfs and raw sockets.

use crate::{
    Effort, baseline,
    cluster::{BenchError, BenchNode, pool_len},
    report::{Report, gbps, median, ns_per_op, rate},
};
use polvo_client::{Client, OpenFile};
use polvo_format::{FileKind, Ino};
use polvo_proto::{FsError, InodeRef, NewFile};
use std::{path::Path, sync::Arc, time::Instant};

/// A regular file of the benchmark's user.
pub fn new_file() -> NewFile {
    NewFile {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    }
}

pub fn root(client: &Arc<Client>) -> Result<InodeRef, FsError> {
    client.run(|c| async move { c.resolve(Ino::ROOT).await })
}

/// A file of `len` bytes, overwritten until every page of the pool has been touched: a mapping's first touch of a page is
/// a fault of the operating system, which is not what is measured.
fn big_file(client: &Arc<Client>, name: &'static str, len: u64) -> Result<Arc<OpenFile>, FsError> {
    let root = root(client)?;
    client.run(|c| async move {
        let (_, file) = c.create_open(root, name.as_bytes(), new_file()).await?;
        let chunk = vec![1u8; 1 << 20];
        for at in (0..pool_len(len)).step_by(chunk.len()) {
            c.write(&file, at % len, &chunk).await?;
        }
        Ok(file)
    })
}

fn remove(client: &Arc<Client>, name: &'static str) -> Result<(), FsError> {
    let root = root(client)?;
    client.run(|c| async move { c.unlink(root, name.as_bytes()).await })
}

/// `ns` a 4 KiB read of random pages.
fn random_read(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort) -> Result<f64, FsError> {
    client.run(|c| async move {
        let mut page = [0u8; 4096];
        let start = Instant::now();
        for at in baseline::pages(effort.file_len, effort.ops) {
            c.read(file, at, &mut page).await?;
        }
        Ok(ns_per_op(start.elapsed(), effort.ops))
    })
}

/// `ns` a durable 4 KiB overwrite of random pages.
fn random_write(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort) -> Result<f64, FsError> {
    client.run(|c| async move {
        let page = [9u8; 4096];
        let start = Instant::now();
        for at in baseline::pages(effort.file_len, effort.ops) {
            c.write(file, at, &page).await?;
        }
        Ok(ns_per_op(start.elapsed(), effort.ops))
    })
}

/// GB/s of a sequential pass in 1 MiB pieces.
fn stream(client: &Arc<Client>, file: &Arc<OpenFile>, effort: Effort, write: bool) -> Result<f64, FsError> {
    client.run(|c| async move {
        let mut chunk = vec![4u8; 1 << 20];
        let start = Instant::now();
        for at in (0..effort.file_len).step_by(chunk.len()) {
            if write {
                c.write(file, at, &chunk).await?;
            } else {
                c.read(file, at, &mut chunk).await?;
            }
        }
        Ok(gbps(start.elapsed(), effort.file_len))
    })
}

/// The internal client: 4 KiB random reads and durable overwrites, 1 MiB streams.
pub fn internal(node: &BenchNode, scratch: &Path, effort: Effort, report: &mut Report) -> Result<(), BenchError> {
    let client = node.internal();
    let (len, ops, n) = (effort.file_len, effort.ops, effort.rounds);
    let mut memory = vec![1u8; len as usize];
    let tmpfs = baseline::tmpfs_file(scratch, len)?;
    let file = big_file(&client, "internal", len)?;

    let copy_from = median(n, || Ok::<_, BenchError>(baseline::memcpy_random(&memory, ops)))?;
    let copy_to = median(n, || Ok::<_, BenchError>(baseline::memcpy_random_to(&mut memory, ops)))?;
    let pread = median(n, || baseline::pread(&tmpfs, len, ops))?;
    let pwrite = median(n, || baseline::pwrite(&tmpfs, len, ops))?;
    let read = median(n, || random_read(&client, &file, effort))?;
    let write = median(n, || random_write(&client, &file, effort))?;
    report.baseline("memcpy from random 4 KiB pages", copy_from, "ns");
    report.baseline("memcpy to random 4 KiB pages", copy_to, "ns");
    report.baseline("tmpfs pread 4 KiB random", pread, "ns");
    report.baseline("tmpfs pwrite 4 KiB random", pwrite, "ns");
    let of = ["memcpy from random 4 KiB pages", "tmpfs pread 4 KiB random"];
    report.row("library internal 4 KiB random read", read, "ns", &of);
    let of = ["memcpy to random 4 KiB pages", "tmpfs pwrite 4 KiB random"];
    report.row("library internal 4 KiB durable overwrite", write, "ns", &of);

    let mut chunk = vec![0u8; 1 << 20];
    let copy = median(n, || {
        let start = Instant::now();
        for at in (0..memory.len()).step_by(chunk.len()) {
            chunk.copy_from_slice(&memory[at..at + (1 << 20)]);
            std::hint::black_box(&chunk);
        }
        Ok::<_, BenchError>(gbps(start.elapsed(), len))
    })?;
    report.baseline("memcpy 1 MiB sequential", copy, "GB/s");
    let read = median(n, || stream(&client, &file, effort, false))?;
    report.row(
        "library internal 1 MiB read",
        read,
        "GB/s",
        &["memcpy 1 MiB sequential"],
    );
    let write = median(n, || stream(&client, &file, effort, true))?;
    report.row(
        "library internal 1 MiB write",
        write,
        "GB/s",
        &["memcpy 1 MiB sequential"],
    );
    drop(file);
    remove(&client, "internal")?;
    client.shutdown();
    std::fs::remove_file(scratch.join("baseline"))?;
    Ok(())
}

/// Creates, stats and unlinks of empty files through the internal client.
pub fn metadata(node: &BenchNode, scratch: &Path, effort: Effort, report: &mut Report) -> Result<(), BenchError> {
    const NAMES: [&str; 3] = ["create", "stat", "unlink"];
    let client = node.internal();
    let dir = root(&client)?;
    let ops = effort.ops;
    let names: Arc<Vec<Vec<u8>>> = Arc::new((0..ops).map(|i| format!("f{i}").into_bytes()).collect());
    let (mut tmpfs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        tmpfs.push(baseline::metadata(scratch, ops)?);
        let names = names.clone();
        ours.push(client.run(|c| async move {
            let start = Instant::now();
            for name in names.iter() {
                c.create(dir, name, new_file()).await?;
            }
            let create = rate(start.elapsed(), ops);
            let start = Instant::now();
            for name in names.iter() {
                std::hint::black_box(c.lookup(dir, name).await?);
            }
            let stat = rate(start.elapsed(), ops);
            let start = Instant::now();
            for name in names.iter() {
                c.unlink(dir, name).await?;
            }
            Ok::<_, FsError>([create, stat, rate(start.elapsed(), ops)])
        })?);
    }
    for (i, what) in NAMES.into_iter().enumerate() {
        let of = |all: &[[f64; 3]]| {
            let mut rounds = all.iter().map(|r| r[i]);
            median(all.len(), || rounds.next().ok_or("a round is missing"))
        };
        let (base, value) = (of(&tmpfs)?, of(&ours)?);
        let tmpfs = format!("tmpfs {what}");
        report.baseline(&tmpfs, base, "1/s");
        report.row(&format!("library internal {what}"), value, "1/s", &[&tmpfs]);
    }
    client.shutdown();
    Ok(())
}

/// The external client, over tcp against a raw socket and over shm.
pub fn external(node: &BenchNode, effort: Effort, report: &mut Report) -> Result<(), BenchError> {
    const ROUND_TRIP: &str = "socket round trip 64 B / 4 KiB";
    const STREAM: &str = "socket 1 MiB stream";
    let n = effort.rounds;
    let round_trip = median(n, || baseline::socket_round_trip(effort.ops))?;
    let socket = median(n, || baseline::socket_stream(effort.file_len))?;
    report.baseline(ROUND_TRIP, round_trip, "ns");
    report.baseline(STREAM, socket, "GB/s");
    for provider in ["tcp", "shm"] {
        let client = node.external(provider)?;
        let name = if provider == "tcp" { "over-tcp" } else { "over-shm" };
        let file = big_file(&client, name, effort.file_len)?;
        let read = median(n, || random_read(&client, &file, effort))?;
        let write = median(n, || random_write(&client, &file, effort))?;
        let read_stream = median(n, || stream(&client, &file, effort, false))?;
        let write_stream = median(n, || stream(&client, &file, effort, true))?;
        let rows = [
            ("4 KiB random read", read, "ns", ROUND_TRIP),
            ("4 KiB durable overwrite", write, "ns", ROUND_TRIP),
            ("1 MiB read", read_stream, "GB/s", STREAM),
            ("1 MiB write", write_stream, "GB/s", STREAM),
        ];
        for (what, value, unit, baseline) in rows {
            report.row(&format!("library {provider} {what}"), value, unit, &[baseline]);
        }
        drop(file);
        remove(&client, name)?;
        client.shutdown();
    }
    Ok(())
}
