//! Shows what a pool lies on, and whether what was made durable outlives a crash.
//!
//! ```text
//! pmem-probe show PATH             medium, flush instruction and size of an existing file or device
//! pmem-probe write PATH LEN SEED   makes the pool and fills it with a pattern, a part by each way of storing
//! pmem-probe check PATH SEED       compares; exits with 1 at the first difference
//! ```

use polvo_pmem::{Pmem, PmemError};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const BLOCK: usize = 4096;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["show", path] => Pmem::open(Path::new(path), None)
            .map(|pool| show(path, &pool))
            .map_err(|e| e.to_string()),
        ["write", path, len, seed] => {
            numbers(len, seed).and_then(|(len, seed)| write(path, len, seed).map_err(|e| e.to_string()))
        }
        ["check", path, seed] => numbers("0", seed).and_then(|(_, seed)| check(path, seed)),
        _ => Err("usage: pmem-probe show PATH | write PATH LEN SEED | check PATH SEED".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pmem-probe: {why}");
            ExitCode::FAILURE
        }
    }
}

fn numbers(len: &str, seed: &str) -> Result<(u64, u64), String> {
    let parse = |s: &str| s.parse().map_err(|_| format!("`{s}` is no number"));
    Ok((parse(len)?, parse(seed)?))
}

fn show(path: &str, pool: &Arc<Pmem>) {
    println!(
        "{path}: medium {} persistence {} bytes {}",
        pool.medium(),
        pool.persistence(),
        pool.len()
    );
}

fn block(seed: u64, number: u64) -> Vec<u8> {
    (0..BLOCK as u64 / 8)
        .flat_map(|word| {
            (seed ^ (number << 20) ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        })
        .collect()
}

fn write(path: &str, len: u64, seed: u64) -> Result<(), PmemError> {
    let pool = Pmem::create(Path::new(path), len, None)?;
    show(path, &pool);
    for number in 0..pool.len() / BLOCK as u64 {
        let (at, bytes) = (number * BLOCK as u64, block(seed, number));
        match number % 3 {
            0 => pool.write_streaming(at, &bytes),
            1 => {
                pool.write(at, &bytes);
                pool.flush(at, BLOCK as u64);
            }
            _ => {
                for (word, bytes) in bytes.chunks(8).enumerate() {
                    pool.write_u64(
                        at + word as u64 * 8,
                        u64::from_ne_bytes(bytes.try_into().expect("eight bytes")),
                    );
                }
                pool.flush(at, BLOCK as u64);
            }
        }
        pool.fence();
    }
    pool.sync()?;
    println!("{path}: wrote {} blocks of {BLOCK} bytes", pool.len() / BLOCK as u64);
    Ok(())
}

fn check(path: &str, seed: u64) -> Result<(), String> {
    let pool = Pmem::open(Path::new(path), None).map_err(|e| e.to_string())?;
    show(path, &pool);
    let mut found = vec![0; BLOCK];
    for number in 0..pool.len() / BLOCK as u64 {
        pool.read(number * BLOCK as u64, &mut found);
        let expected = block(seed, number);
        if let Some(at) = (0..BLOCK).find(|at| found[*at] != expected[*at]) {
            return Err(format!(
                "{path}: byte {:#x} is not what was written",
                number * BLOCK as u64 + at as u64
            ));
        }
    }
    println!("{path}: all {} blocks are as written", pool.len() / BLOCK as u64);
    Ok(())
}
