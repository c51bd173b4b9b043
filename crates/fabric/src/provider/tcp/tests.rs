//! What a peer that knows the secret but not the manners can do: nothing.

use super::output::BY_REFERENCE;
use super::wire::{Frame, LAST, MAX_PAYLOAD, NO_OP, Opcode, UNREPORTED, UNSIGNALED};
use crate::{
    Access, Address, Buffer, Event, Identity, Listener, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Role,
    Security, Verb, connect, handshake,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zerocopy::IntoBytes;

const LONG: Duration = Duration::from_secs(20);

fn identity() -> Identity {
    Identity {
        cluster: [1; 16],
        secret: b"s"[..].into(),
        role: Role::Node(1),
        security: Security::None,
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { timeout(LONG, test).await.expect("the test takes too long") });
}

/// A queue pair whose peer is a bare stream, past the handshake.
struct Rude {
    stream: TcpStream,
    victim: QueuePair,
    buffer: Arc<Buffer>,
    key: RemoteKey,
    listener: Listener,
    regions: Arc<MemoryRegions>,
}

const LEN: usize = 10_000;

async fn rude() -> Rude {
    let regions = MemoryRegions::new();
    let buffer = Buffer::new(3 * LEN);
    let key = regions.register(Memory::Buffer(buffer.clone()), LEN as u64, LEN as u64, Access::ALL);
    let mut listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into()), &identity(), &regions)
        .await
        .unwrap();
    let Address::Tcp(addr) = listener.local_addr() else {
        unreachable!()
    };
    let shaking = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        handshake::initiate(&identity(), &mut stream).await.unwrap();
        stream
    };
    let (stream, victim) = tokio::join!(shaking, listener.accept());
    Rude {
        stream,
        victim: victim.unwrap(),
        buffer,
        key,
        listener,
        regions,
    }
}

impl Rude {
    /// Sends the bytes and expects the connection to end for this reason.
    async fn ends(mut self, bytes: &[u8], close: bool, why: &str) {
        self.stream.write_all(bytes).await.unwrap();
        if close {
            self.stream.shutdown().await.unwrap();
        }
        assert_eq!(self.victim.next_event().await, None);
        let lost = self.victim.lost().unwrap().to_string();
        assert!(lost.contains(why), "{lost:?} does not say {why:?}");
        let mut outside = vec![0; 3 * LEN];
        self.buffer.read(0, &mut outside);
        assert!(outside.iter().all(|&byte| byte == 0), "nothing was touched");
        // Others are served as before.
        let addr = self.listener.local_addr();
        let me = identity();
        let (client, server) = tokio::join!(connect(&addr, &me, &self.regions, LONG), self.listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let at = Remote {
            key: self.key,
            offset: 0,
        };
        let mut batch = [Verb::Write { to: at, bytes: b"well" }];
        tokio::select! {
            done = client.execute(&mut batch) => done.unwrap(),
            _ = server.next_event() => unreachable!("no event was sent"),
        }
    }
}

fn request(opcode: Opcode, op: u32) -> Frame {
    Frame::new(opcode, op).flags(LAST)
}

#[test]
fn what_is_no_frame_ends_the_connection() {
    run(async {
        rude().await.ends(&[0x55; 100], false, "does not begin as one").await;
        rude().await.ends(&[0; 48], false, "does not begin as one").await;
        let mut unknown = request(Opcode::Read, 1).as_bytes().to_vec();
        unknown[2] = 200;
        rude().await.ends(&unknown, false, "unknown opcode").await;
    });
}

#[test]
fn truncated_frames_end_the_connection_and_write_nothing() {
    run(async {
        let rude_one = rude().await;
        let frame = request(Opcode::Write, 1)
            .at(rude_one.key.0, 0)
            .with(100, 0)
            .with_payload(100);
        let mut bytes = frame.as_bytes().to_vec();
        rude_one.ends(&bytes[..20], true, "a truncated frame").await;
        bytes.extend_from_slice(&[7; 99]);
        rude().await.ends(&bytes, true, "a truncated frame").await;
        rude().await.ends(&[], true, "closed by the peer").await;
    });
}

#[test]
fn oversized_payloads_end_the_connection() {
    run(async {
        let frame = request(Opcode::Write, 1)
            .with(u64::MAX, 0)
            .with_payload(MAX_PAYLOAD + 1);
        rude().await.ends(frame.as_bytes(), false, "oversized payload").await;
        let frame = request(Opcode::Send, 1).with_payload(crate::MAX_SEND + 1);
        rude().await.ends(frame.as_bytes(), false, "oversized payload").await;
        let frame = request(Opcode::Read, 1).with_payload(1);
        rude().await.ends(frame.as_bytes(), false, "oversized payload").await;
    });
}

#[test]
fn requests_that_contradict_themselves_end_the_connection() {
    run(async {
        let one = rude().await;
        let key = one.key.0;
        let write = Frame::new(Opcode::Write, 1).at(key, 0).with(7, 0).with_payload(8);
        one.ends(&[write.as_bytes(), &[1; 8]].concat(), false, "longer than it says")
            .await;
        let reads = [(MAX_PAYLOAD as u64 + 1, u64::MAX), (8, 7)];
        for (a, b) in reads {
            let read = request(Opcode::Read, 1).at(key, 0).with(a, b);
            rude().await.ends(read.as_bytes(), false, "makes no sense").await;
        }
        let within = [
            Frame::new(Opcode::Flush, 1).as_bytes(),
            request(Opcode::Flush, 2).as_bytes(),
        ]
        .concat();
        rude().await.ends(&within, false, "a batch within a batch").await;
        let unsignaled = request(Opcode::Flush, 5).flags(LAST | UNSIGNALED);
        rude()
            .await
            .ends(unsignaled.as_bytes(), false, "unsignaled batch")
            .await;
    });
}

#[test]
fn answers_to_nothing_end_the_connection() {
    run(async {
        for op in [0, 1, 255, 256, 0x1234_5600, NO_OP - 1] {
            for opcode in [Opcode::Data, Opcode::Word, Opcode::Complete] {
                let answer = request(opcode, op);
                rude()
                    .await
                    .ends(answer.as_bytes(), false, "nothing that was asked")
                    .await;
            }
        }
        let large = Frame::new(Opcode::Data, 256).with_payload(5000);
        rude()
            .await
            .ends(
                &[large.as_bytes(), &[1; 5000]].concat(),
                false,
                "nothing that was asked",
            )
            .await;
    });
}

#[test]
fn wrong_answers_to_a_real_operation_end_the_connection_and_overrun_nothing() {
    run(async {
        // Too much, for another destination, of another kind, too little, twice.
        let cases: [&dyn Fn(u32) -> Vec<u8>; 6] = [
            &|op| [Frame::new(Opcode::Data, op).with_payload(101).as_bytes(), &[1; 101]].concat(),
            &|op| [Frame::new(Opcode::Data, op).with_payload(9000).as_bytes(), &[1; 9000]].concat(),
            &|op| {
                [
                    Frame::new(Opcode::Data, op).with_aux(1).with_payload(100).as_bytes(),
                    &[1; 100],
                ]
                .concat()
            },
            &|op| Frame::new(Opcode::Word, op).as_bytes().to_vec(),
            &|op| [request(Opcode::Data, op).with_payload(99).as_bytes(), &[1; 99]].concat(),
            &|op| {
                let data = [Frame::new(Opcode::Data, op).with_payload(100).as_bytes(), &[1; 100]].concat();
                [data.clone(), data].concat()
            },
        ];
        for (index, case) in cases.into_iter().enumerate() {
            let mut rude = rude().await;
            let mut memory = vec![0; 300];
            let (_, rest) = memory.split_at_mut(100);
            let (into, _) = rest.split_at_mut(100);
            let victim = rude.victim.clone();
            let from = Remote {
                key: RemoteKey(5),
                offset: 0,
            };
            let mut batch = [Verb::Read { from, into }];
            let answering = async {
                let mut asked = [0; 48];
                rude.stream.read_exact(&mut asked).await.unwrap();
                let (opcode, frame) = Frame::parse(&asked).unwrap();
                assert_eq!((opcode, frame.a()), (Opcode::Read, 100));
                rude.stream.write_all(&case(frame.op())).await.unwrap();
            };
            let (done, ()) = tokio::join!(victim.execute(&mut batch), answering);
            let error = done.unwrap_err().to_string();
            assert!(error.contains("nothing that was asked"), "case {index}: {error}");
            assert!(
                memory[..100].iter().chain(&memory[200..]).all(|&byte| byte == 0),
                "case {index}"
            );
        }
    });
}

#[test]
fn random_frames_touch_nothing_outside_what_is_registered() {
    run(async {
        let seed = 0x0c70_9005u64;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..60 {
            let mut rude = rude().await;
            let mut sent = Vec::new();
            for _ in 0..200 {
                use Opcode::*;
                let opcode = [Read, Write, WriteImm, CompareSwap, FetchAdd, Flush, Send][random(7) as usize];
                let key = if random(4) == 0 { random(1 << 32) } else { rude.key.0 };
                let offset = match random(4) {
                    0 => random(u64::MAX),
                    1 => LEN as u64 - random(100),
                    _ => random(LEN as u64),
                };
                let len = match (opcode, random(3)) {
                    (Write | WriteImm | Send, 0) => random(20_000) as usize,
                    (Write | WriteImm | Send, _) => random(100) as usize,
                    _ => 0,
                };
                let a = if random(3) == 0 {
                    random(u64::MAX)
                } else {
                    len as u64 + random(50)
                };
                let b = if random(3) == 0 { random(u64::MAX) } else { a };
                let frame = Frame::new(opcode, round).flags(random(2) as u8 * LAST);
                sent.extend_from_slice(frame.at(key, offset).with(a, b).with_payload(len).as_bytes());
                sent.extend((0..len).map(|_| 0xee));
            }
            let (mut reading, mut writing) = rude.stream.split();
            let mut sink = [0; 4096];
            let writer = async {
                let _ = writing.write_all(&sent).await;
                let _ = writing.shutdown().await;
            };
            let reader = async { while matches!(reading.read(&mut sink).await, Ok(1..)) {} };
            let victim = async { while rude.victim.next_event().await.is_some() {} };
            tokio::join!(writer, reader, victim);
            let mut bytes = vec![0; 3 * LEN];
            rude.buffer.read(0, &mut bytes);
            assert!(
                bytes[..LEN].iter().chain(&bytes[2 * LEN..]).all(|&byte| byte == 0),
                "round {round}"
            );
        }
    });
}

#[test]
fn a_flood_of_events_waits_until_they_are_taken() {
    run(async {
        let mut rude = rude().await;
        let frames = 20_000u32;
        let immediate = |imm: u32| request(Opcode::WriteImm, NO_OP).flags(LAST | UNSIGNALED).with_aux(imm);
        let (_, mut writing) = rude.stream.split();
        let flood = async {
            for imm in 0..frames {
                writing.write_all(immediate(imm).as_bytes()).await.unwrap();
            }
        };
        let taking = async {
            // Let it pile up first.
            for _ in 0..100 {
                rude.victim.progress();
                tokio::task::yield_now().await;
            }
            for imm in 0..frames {
                assert_eq!(rude.victim.next_event().await, Some(Event::Immediate(imm)));
            }
        };
        tokio::join!(flood, taking);
    });
}

#[test]
fn nothing_lands_in_memory_that_was_taken_back_in_the_middle_of_a_write() {
    run(async {
        let mut rude = rude().await;
        let write = |op: u32, flags: u8| {
            let frame = Frame::new(Opcode::Write, op).flags(LAST | flags).at(rude.key.0, 0);
            frame.with(LEN as u64, 0).with_payload(LEN)
        };
        let (unreported, signaled) = (write(NO_OP, UNSIGNALED | UNREPORTED), write(1, 0));
        let victim = rude.victim.clone();
        let serving = async { assert_eq!(victim.next_event().await, None) };
        let (buffer, regions, key) = (rude.buffer.clone(), rude.regions.clone(), rude.key);
        let writing = async {
            rude.stream.write_all(unreported.as_bytes()).await.unwrap();
            rude.stream.write_all(&[1; LEN / 2]).await.unwrap();
            let mut byte = [0];
            while byte == [0] {
                tokio::task::yield_now().await;
                buffer.read(LEN + LEN / 2 - 1, &mut byte);
            }
            regions.deregister(key);
            rude.stream.write_all(&[1; LEN / 2]).await.unwrap();
            rude.stream.write_all(signaled.as_bytes()).await.unwrap();
            rude.stream.write_all(&[2; LEN]).await.unwrap();
            let mut answer = [0; 48];
            rude.stream.read_exact(&mut answer).await.unwrap();
            let (opcode, frame) = Frame::parse(&answer).unwrap();
            assert_eq!(
                (opcode, frame.op()),
                (Opcode::Complete, 1),
                "only what was to be reported"
            );
            assert_ne!(frame.aux(), 0);
            let mut bytes = [0; LEN];
            buffer.read(LEN, &mut bytes);
            assert!(bytes[..LEN / 2] == [1; LEN / 2] && bytes[LEN / 2..] == [0; LEN / 2]);
            rude.stream.shutdown().await.unwrap();
        };
        tokio::join!(serving, writing);
    });
}

/// Or each dispatch of a transaction would cost a system call of its own.
#[test]
fn what_is_deferred_goes_together_and_soon() {
    run(tokio::task::LocalSet::new().run_until(async {
        let Rude { stream, victim, .. } = rude().await;
        let arrived = || rustix::io::ioctl_fionread(&stream).unwrap() as usize / (size_of::<Frame>() + 5);
        // without giving the other tasks of the thread a turn
        let arrive = |count: usize, when: &str| {
            let start = std::time::Instant::now();
            while arrived() < count {
                assert!(start.elapsed() < LONG / 2, "{when}: {} of {count}", arrived());
                std::thread::yield_now();
            }
            assert_eq!(arrived(), count, "{when}");
        };
        let defer = || async {
            let mut message = [Verb::Send { bytes: b"later" }];
            victim.execute_deferred(&mut message).await.unwrap();
        };

        defer().await;
        arrive(1, "at once: nobody flushes later");

        let poller = tokio::task::spawn_local(crate::poller());
        tokio::task::yield_now().await;
        defer().await;
        defer().await;
        assert_eq!(arrived(), 1, "later");
        tokio::task::yield_now().await;
        arrive(3, "when the poller has had its turn");

        defer().await;
        crate::flush();
        arrive(4, "when the thread stops");

        defer().await;
        let mut message = [Verb::Send { bytes: b"now.." }];
        victim.execute_unsignaled(&mut message).await.unwrap();
        arrive(6, "with what is posted next");

        defer().await;
        poller.abort();
        tokio::task::yield_now().await;
        arrive(7, "when the poller ends");
    }));
}

/// Or what a caller has taken back would be sent.
#[test]
fn what_is_not_copied_is_not_deferred() {
    run(tokio::task::LocalSet::new().run_until(async {
        let Rude { mut stream, victim, .. } = rude().await;
        let poller = tokio::task::spawn_local(crate::poller());
        tokio::task::yield_now().await;
        let mut large = vec![1; BY_REFERENCE + 900];
        victim
            .execute_deferred(&mut [Verb::Send { bytes: &large }])
            .await
            .unwrap();
        large.fill(2);
        crate::flush();
        let mut found = vec![0; size_of::<Frame>() + large.len()];
        stream.read_exact(&mut found).await.unwrap();
        assert!(found[size_of::<Frame>()..].iter().all(|byte| *byte == 1));
        poller.abort();
    }));
}
