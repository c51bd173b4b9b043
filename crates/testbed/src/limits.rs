//! The limits that are promised, reached: a million entries in a directory, a million inodes in a pool of 1 GiB, a file of
//! 8 EiB, a thousand sessions; with what each took. Then the process that has done it is killed, and the pool recovered.

use crate::Failure;
use crate::cluster::{BenchNode, Scratch, new_file, root, used_bytes};
use crate::part::{self, resident_bytes};
use polvo_client::{Client, LocalClient};
use polvo_format::{FileKind, NAME_MAX};
use polvo_pmem::Pmem;
use polvo_proto::{FsError, InodeRef, NewFile};
use polvo_region::{PoolSpace, Region};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

const POOL_LEN: u64 = 1 << 30;
/// What `stat` can show, and the kernel lets through.
const SIZE_MAX: u64 = i64::MAX as u64;
const SESSIONS: usize = 1000;
/// Segments that hold nothing any more are given back within this time.
const GIVEN_BACK: Duration = Duration::from_secs(20);

/// What this does in a process that it kills.
pub const PART: &str = "limits-fill";

/// Fills a pool below `scratch` in a process of its own, kills that, and recovers the pool; says on `out` what each took.
pub fn run(scratch: &Path, entries: usize, out: &mut dyn Write) -> Result<(), Failure> {
    let scratch = Scratch::new(scratch)?;
    let mut child = part::command(scratch.path(), PART, &[entries])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = child.stdout.take().ok_or("the child has no output")?;
    let mut filled = false;
    for line in BufReader::new(said).lines() {
        let line = line?;
        if line == "filled" {
            filled = true;
            break;
        }
        writeln!(out, "{line}")?;
    }
    child.kill()?;
    child.wait()?;
    if !filled {
        return Err("the limits were not reached".into());
    }
    recover(scratch.path(), entries, out)
}

fn recover(dir: &Path, entries: usize, out: &mut dyn Write) -> Result<(), Failure> {
    let before = resident_bytes()?;
    let start = Instant::now();
    let space = PoolSpace::open(Pmem::open(&dir.join("pool"), None)?)?;
    let (mut inodes, mut bytes_read) = (0, 0);
    let mut regions = Vec::new();
    for id in space.regions() {
        let (region, recovery) = Region::recover(&space, id, &mut |_, _| ())?;
        inodes += recovery.inodes;
        bytes_read += recovery.bytes_read;
        regions.push(region);
    }
    let took = start.elapsed();
    writeln!(
        out,
        "recovery after kill -9: {inodes} inodes in {:.2} s, {bytes_read} bytes read, {} bytes of memory",
        took.as_secs_f64(),
        resident_bytes()?.saturating_sub(before)
    )?;
    if inodes < entries as u64 {
        return Err(format!("{inodes} inodes of {entries} are there").into());
    }
    let start = Instant::now();
    for region in &mut regions {
        let report = region.check(&mut |_, _| ());
        if !report.findings.is_empty() {
            return Err(format!("{:?}", &report.findings[..report.findings.len().min(5)]).into());
        }
    }
    writeln!(out, "check: clean in {:.2} s", start.elapsed().as_secs_f64())?;
    Ok(())
}

/// The child's part: everything below `dir`, until it is killed.
pub fn fill(dir: &Path, values: &[String]) -> Result<(), Failure> {
    let entries = part::number(values, 0)?;
    let node = BenchNode::start(dir, POOL_LEN)?;
    let client = node.internal();
    files_that_go(&client, entries / 4)?;
    million_entries(&client, entries)?;
    large_file(&client)?;
    long_name(&client)?;
    sessions(&node)?;
    println!("filled");
    // nothing is put in order before the parent kills this process
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Makes a directory with so many files and removes them; the pool is as empty as before soon after.
fn files_that_go(client: &Arc<Client>, entries: usize) -> Result<(), Failure> {
    let top = root(client)?;
    let fresh = used_bytes(client)?;
    let dir = client.run(|c| async move {
        let dir = make_dir(&c, top, b"going").await?;
        for n in 0..entries {
            c.create(dir, format!("file-{n:07}").as_bytes(), new_file()).await?;
        }
        Ok::<_, FsError>(dir)
    })?;
    let full = used_bytes(client)?;
    client.run(|c| async move {
        for n in 0..entries {
            c.unlink(dir, format!("file-{n:07}").as_bytes()).await?;
        }
        c.rmdir(top, b"going").await
    })?;
    let start = Instant::now();
    loop {
        let left = used_bytes(client)?;
        if left == fresh {
            break;
        }
        if start.elapsed() > GIVEN_BACK {
            return Err(
                format!("{fresh} bytes used by an empty pool, {full} with {entries} files, {left} without").into(),
            );
        }
        // what is freed waits until all sessions have been seen, and the leases of a bench are long
        client.run(|c| async move {
            c.renew().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        });
    }
    println!(
        "files removed: {entries}, and their {} bytes of pool {:.2} s later",
        full - fresh,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

async fn make_dir(c: &LocalClient, parent: InodeRef, name: &[u8]) -> Result<InodeRef, FsError> {
    let file = NewFile {
        kind: FileKind::Directory,
        mode: 0o755,
        ..new_file()
    };
    let made = c.create(parent, name, file).await?;
    Ok(InodeRef {
        ino: made.ino,
        generation: made.generation,
    })
}

fn million_entries(client: &Arc<Client>, entries: usize) -> Result<(), Failure> {
    let top = root(client)?;
    let (pool_before, memory_before) = (used_bytes(client)?, resident_bytes()?);
    let start = Instant::now();
    let dir = client.run(|c| async move {
        let dir = make_dir(&c, top, b"million").await?;
        for n in 0..entries {
            c.create(dir, format!("file-{n:07}").as_bytes(), new_file()).await?;
        }
        Ok::<_, FsError>(dir)
    })?;
    let took = start.elapsed().as_secs_f64();
    let (pool, memory) = (
        used_bytes(client)? - pool_before,
        resident_bytes()?.saturating_sub(memory_before),
    );
    println!(
        "files in one directory: {entries} in {took:.1} s, {} bytes of pool and {} bytes of memory a file",
        pool / entries as u64,
        memory / entries as u64
    );
    let start = Instant::now();
    let listed = client.run(|c| async move {
        let (mut after, mut listed) = (0, 0);
        loop {
            let page = c.read_dir(dir, after, 1000).await?.entries;
            let Some(last) = page.last() else {
                return Ok::<_, FsError>(listed);
            };
            after = last.cookie;
            listed += page.len();
        }
    })?;
    println!("listing them: {:.2} s", start.elapsed().as_secs_f64());
    if listed != entries {
        return Err(format!("{listed} of {entries} entries are listed").into());
    }
    let start = Instant::now();
    client.run(|c| async move {
        for n in (0..entries).step_by(97) {
            c.lookup(dir, format!("file-{n:07}").as_bytes()).await?;
        }
        c.unlink(dir, b"file-0000000").await?;
        match c.lookup(dir, b"file-0000000").await {
            Err(FsError::NotFound) => c.create(dir, b"file-0000000", new_file()).await.map(drop),
            other => Err(FsError::Io(format!("a deleted name is found: {other:?}"))),
        }
    })?;
    println!("looking up every 97th: {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn large_file(client: &Arc<Client>) -> Result<(), Failure> {
    let top = root(client)?;
    client.run(|c| async move {
        let (_, file) = c.create_open(top, b"large", new_file()).await?;
        let mut back = [0; 5];
        for at in [0, 1 << 40, SIZE_MAX - 5] {
            c.write(&file, at, b"bytes").await?;
        }
        for at in [0, 1 << 40, SIZE_MAX - 5] {
            c.read(&file, at, &mut back).await?;
            if &back != b"bytes" {
                return Err(FsError::Io(format!("{back:?} at {at}")));
            }
        }
        match c.write(&file, SIZE_MAX, b"x").await {
            Err(FsError::FileTooLarge) => Ok(()),
            other => Err(FsError::Io(format!("writing beyond the largest size: {other:?}"))),
        }
    })?;
    println!("sparse file: {SIZE_MAX} bytes, written and read at its ends and within");
    Ok(())
}

fn long_name(client: &Arc<Client>) -> Result<(), Failure> {
    let top = root(client)?;
    client.run(|c| async move {
        let name = vec![b'n'; NAME_MAX + 1];
        c.create(top, &name[1..], new_file()).await?;
        c.lookup(top, &name[1..]).await?;
        match c.create(top, &name, new_file()).await {
            Err(FsError::NameTooLong) => Ok(()),
            other => Err(FsError::Io(format!("a name of {} bytes: {other:?}", name.len()))),
        }
    })?;
    println!("names: {NAME_MAX} bytes, and none of {}", NAME_MAX + 1);
    Ok(())
}

fn sessions(node: &BenchNode) -> Result<(), Failure> {
    let before = resident_bytes()?;
    let start = Instant::now();
    let mut clients = Vec::with_capacity(SESSIONS);
    for n in 0..SESSIONS {
        let client = node.internal();
        let top = root(&client)?;
        client.run(|c| async move {
            let (_, file) = c
                .create_open(top, format!("session-{n}").as_bytes(), new_file())
                .await?;
            c.write(&file, 0, &[1; 8192]).await
        })?;
        clients.push(client);
    }
    println!(
        "sessions: {SESSIONS} that each hold a file and space in {:.2} s, {} bytes of memory a session",
        start.elapsed().as_secs_f64(),
        resident_bytes()?.saturating_sub(before) / SESSIONS as u64
    );
    std::mem::forget(clients); // they live until the process is killed
    Ok(())
}
