//! A raw TCP socket on the loopback: what any protocol over it could at best equal.

use crate::BenchError;
use crate::samples::{Timed, gbps};
use polvo_testbed::cores::{MEASURING, SERVING, keep_to};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// How the two sides wait for each other. A figure is compared with the baseline that waits the same way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::Display)]
pub enum Waits {
    /// Both sleep in the kernel.
    #[strum(to_string = "both blocking")]
    Blocking,
    /// The client spins, the server sleeps: an idle server is asked.
    #[strum(to_string = "client spinning")]
    ClientSpins,
    /// Both spin: a busy server is asked.
    #[strum(to_string = "both spinning")]
    BothSpin,
}

/// One side of a connection.
struct End {
    stream: TcpStream,
}

impl End {
    fn new(stream: TcpStream, spins: bool) -> io::Result<End> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spins)?;
        Ok(End { stream })
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// False if the peer has gone and sent nothing more.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<bool> {
        let mut there = 0;
        while there < into.len() {
            match self.stream.read(&mut into[there..]) {
                Ok(0) if there == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => there += got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn connected(waits: Waits) -> io::Result<(End, End)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    Ok((
        End::new(near, waits != Waits::Blocking)?,
        End::new(far, waits == Waits::BothSpin)?,
    ))
}

/// `ns` a round trip of a request and an answer of so many bytes.
pub fn round_trip(request: usize, answer: usize, waits: Waits, ops: usize) -> Result<f64, BenchError> {
    let (mut near, mut far) = connected(waits)?;
    let server = std::thread::spawn(move || -> io::Result<()> {
        let _core = keep_to(SERVING);
        let (mut request, answer) = (vec![0; request], vec![0; answer]);
        while far.receive(&mut request)? {
            far.send(&answer)?;
        }
        Ok(())
    });
    let _core = keep_to(MEASURING);
    let (request, mut answer) = (vec![0; request], vec![0; answer]);
    // the other thread has begun
    near.send(&request)?;
    near.receive(&mut answer)?;
    let mut timed = Timed::new(ops);
    for _ in timed.by_ref() {
        near.send(&request)?;
        near.receive(&mut answer)?;
    }
    let took = timed.ns_per_op();
    drop(near);
    server.join().map_err(|_| "the server thread failed")??;
    Ok(took)
}

/// GB/s of 1 MiB messages, one at a time, over and over from and to the same `len` bytes: each is answered by a byte (as a
/// one-sided write is by its completion) or, with `reading`, asked for by one.
pub fn stream(total: u64, len: u64, reading: bool) -> Result<f64, BenchError> {
    const MESSAGE: usize = 1 << 20;
    let len = len as usize;
    let messages = (total as usize / MESSAGE).max(1);
    let (mut near, mut far) = connected(Waits::ClientSpins)?;
    // all of it touched
    let mut memory = vec![1u8; len];
    let server = std::thread::spawn(move || -> io::Result<()> {
        let _core = keep_to(SERVING);
        for message in 0..messages {
            let at = message * MESSAGE % len;
            let bytes = &mut memory[at..at + MESSAGE];
            if reading {
                far.receive(&mut [0])?;
                far.send(bytes)?;
            } else {
                far.receive(bytes)?;
                far.send(&[0])?;
            }
        }
        Ok(())
    });
    let _core = keep_to(MEASURING);
    let mut message = vec![5u8; MESSAGE];
    let start = Instant::now();
    for _ in 0..messages {
        if reading {
            near.send(&[0])?;
            near.receive(&mut message)?;
        } else {
            near.send(&message)?;
            near.receive(&mut [0])?;
        }
    }
    let took = start.elapsed();
    server.join().map_err(|_| "the server thread failed")??;
    Ok(gbps(took, (messages * MESSAGE) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_there_and_back_however_the_sides_wait() {
        for waits in [Waits::Blocking, Waits::ClientSpins, Waits::BothSpin] {
            assert!(round_trip(64, 4096, waits, 20).unwrap() > 0.0);
        }
        for reading in [false, true] {
            assert!(stream(3 << 20, 2 << 20, reading).unwrap() > 0.0);
        }
    }
}
