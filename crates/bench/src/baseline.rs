//! What the machine gives: the floor under every figure.

use crate::report::{gbps, ns_per_op, rate};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::Path,
    time::Instant,
};

/// Offsets of random 4 KiB pages in a file; a fixed linear congruential sequence, so that both sides of a ratio touch
/// the same pages.
pub fn pages(file_len: u64, ops: usize) -> impl Iterator<Item = u64> {
    let pages = file_len / 4096;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..ops).map(move |_| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % pages * 4096
    })
}

/// `ns` a 4 KiB copy from random pages of memory that is too large for the caches.
pub fn memcpy_random(memory: &[u8], ops: usize) -> f64 {
    let mut page = [0u8; 4096];
    let start = Instant::now();
    for at in pages(memory.len() as u64, ops) {
        page.copy_from_slice(&memory[at as usize..at as usize + 4096]);
        std::hint::black_box(&page);
    }
    ns_per_op(start.elapsed(), ops)
}

/// `ns` a 4 KiB copy to random pages.
pub fn memcpy_random_to(memory: &mut [u8], ops: usize) -> f64 {
    let page = [7u8; 4096];
    let start = Instant::now();
    for at in pages(memory.len() as u64, ops) {
        memory[at as usize..at as usize + 4096].copy_from_slice(&page);
    }
    std::hint::black_box(&memory);
    ns_per_op(start.elapsed(), ops)
}

/// A file on tmpfs of `len` bytes, all of them written.
pub fn tmpfs_file(dir: &Path, len: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(dir.join("baseline"))?;
    let chunk = vec![1u8; 1 << 20];
    for at in (0..len).step_by(chunk.len()) {
        file.write_all_at(&chunk, at)?;
    }
    Ok(file)
}

/// `ns` a 4 KiB `pread`.
pub fn pread(file: &File, len: u64, ops: usize) -> io::Result<f64> {
    let mut page = [0u8; 4096];
    let start = Instant::now();
    for at in pages(len, ops) {
        file.read_exact_at(&mut page, at)?;
    }
    Ok(ns_per_op(start.elapsed(), ops))
}

/// `ns` a 4 KiB `pwrite`.
pub fn pwrite(file: &File, len: u64, ops: usize) -> io::Result<f64> {
    let page = [3u8; 4096];
    let start = Instant::now();
    for at in pages(len, ops) {
        file.write_all_at(&page, at)?;
    }
    Ok(ns_per_op(start.elapsed(), ops))
}

/// Creates, stats and unlinks a second in a directory, by system calls.
pub fn metadata(dir: &Path, ops: usize) -> io::Result<[f64; 3]> {
    let names: Vec<_> = (0..ops).map(|i| dir.join(format!("f{i}"))).collect();
    let start = Instant::now();
    for name in &names {
        drop(OpenOptions::new().create_new(true).write(true).open(name)?);
    }
    let create = rate(start.elapsed(), ops);
    let start = Instant::now();
    for name in &names {
        std::hint::black_box(std::fs::symlink_metadata(name)?);
    }
    let stat = rate(start.elapsed(), ops);
    let start = Instant::now();
    for name in &names {
        std::fs::remove_file(name)?;
    }
    Ok([create, stat, rate(start.elapsed(), ops)])
}

fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// `ns` a round trip of a 64-byte request and a 4 KiB answer over a raw socket, both sides blocking.
pub fn socket_round_trip(ops: usize) -> io::Result<f64> {
    let (mut near, mut far) = socket_pair()?;
    let server = std::thread::spawn(move || -> io::Result<()> {
        let (mut request, answer) = ([0u8; 64], [0u8; 4096]);
        for _ in 0..ops {
            far.read_exact(&mut request)?;
            far.write_all(&answer)?;
        }
        Ok(())
    });
    let (request, mut answer) = ([0u8; 64], [0u8; 4096]);
    let start = Instant::now();
    for _ in 0..ops {
        near.write_all(&request)?;
        near.read_exact(&mut answer)?;
    }
    let took = start.elapsed();
    server.join().map_err(|_| io::Error::other("server thread failed"))??;
    Ok(ns_per_op(took, ops))
}

/// GB/s of a raw socket: 1 MiB messages, each answered by one byte (as a one-sided write is by its completion).
pub fn socket_stream(total: u64) -> io::Result<f64> {
    const MESSAGE: usize = 1 << 20;
    let messages = (total / MESSAGE as u64).max(1);
    let (mut near, mut far) = socket_pair()?;
    let server = std::thread::spawn(move || -> io::Result<()> {
        let mut message = vec![0u8; MESSAGE];
        for _ in 0..messages {
            far.read_exact(&mut message)?;
            far.write_all(&[0])?;
        }
        Ok(())
    });
    let (message, mut done) = (vec![5u8; MESSAGE], [0u8; 1]);
    let start = Instant::now();
    for _ in 0..messages {
        near.write_all(&message)?;
        near.read_exact(&mut done)?;
    }
    let took = start.elapsed();
    server.join().map_err(|_| io::Error::other("server thread failed"))??;
    Ok(gbps(took, messages * MESSAGE as u64))
}
