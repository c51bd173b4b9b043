//! What fuzz targets drive that is not public otherwise.

use crate::handshake::Shaken;
use crate::provider::tcp::Tcp;
use crate::{Access, Buffer, Event, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Role, Security, Verb};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longest input that fits a socket's buffer for certain, bytes.
const MOST: usize = 64 << 10;

/// Bytes of the memory region, and of what lies before and behind it.
const LEN: usize = 4096;

/// A peer past the handshake sends these bytes and ends, while a batch of reads, writes and atomics of ours waits for it.
/// Whatever they are, nothing outside of the memory region is touched. Those that begin with a 1 are records.
pub fn tcp_peer_sends(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs no more than a few descriptors");
    runtime.block_on(async {
        let buffer = Buffer::new(3 * LEN);
        let (security, bytes) = match bytes.split_first() {
            Some((1, records)) => (Security::Auth, records),
            _ => (Security::None, bytes),
        };
        let (ours, mut far) = connected(&buffer, security);
        let _ = far.write_all(&bytes[..bytes.len().min(MOST)]);
        let _ = far.shutdown(std::net::Shutdown::Write);
        let both = async {
            tokio::select! {
                () = wait_for_peer(&ours) => {}
                () = drain(&mut far) => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .expect("a peer that has ended is noticed");
        let mut around = vec![0; 3 * LEN];
        buffer.read(0, &mut around);
        let outside = around[..LEN].iter().chain(&around[2 * LEN..]);
        assert!(
            outside.copied().all(|byte| byte == 0),
            "nothing outside of the memory region is touched"
        );
    });
}

/// A queue pair past the handshake, whose memory region is the middle of the buffer, and the socket of its peer.
fn connected(buffer: &Arc<Buffer>, security: Security) -> (QueuePair, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    for end in [&near, &far] {
        end.set_nonblocking(true).expect("a socket can be made non-blocking");
    }
    let regions = MemoryRegions::new();
    regions.register(Memory::Buffer(buffer.clone()), LEN as u64, LEN as u64, Access::ALL);
    let shaken = Shaken::pretended(Role::Client, security);
    let tcp = Tcp::new(near.into(), shaken, "fuzzer".into(), regions).expect("the socket registers");
    (QueuePair::new(Rc::new(tcp)), far)
}

/// Waits for a batch and for events until the peer is gone.
async fn wait_for_peer(ours: &QueuePair) {
    let (mut into, mut found) = ([0; 100], 0);
    let at = Remote {
        key: RemoteKey(1),
        offset: 0,
    };
    let mut batch = [
        Verb::Read {
            from: at,
            into: &mut into,
        },
        Verb::CompareSwap {
            at,
            expect: 0,
            new: 1,
            found: &mut found,
        },
    ];
    let mut batch = pin!(ours.execute(&mut batch));
    loop {
        tokio::select! {
            biased;
            _ = &mut batch => break,
            event = ours.next_event() => if !matches!(event, Some(Event::Immediate(_) | Event::Message(_))) {
                break;
            },
        }
    }
    while ours.next_event().await.is_some() {}
}

/// Reads what the peer is answered, so that answers never stop it.
async fn drain(far: &mut UnixStream) {
    let mut answers = vec![0; MOST];
    loop {
        match far.read(&mut answers) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        tokio::task::yield_now().await;
    }
}
