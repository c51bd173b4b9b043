//! Every verb, its errors, and what a queue pair promises, the same over every provider.

use crate::support::{Events, Pair, at, bytes_of, on_every_provider, pattern};
use polvo_fabric::{Access, Buffer, Event, FabricError, Local, MAX_SEND, Memory, Remote, RemoteKey, Verb};
use polvo_pmem::Pmem;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

#[test]
fn what_is_written_is_there_and_is_read_back() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(1 << 20, Access::ALL);
        for (seed, len) in [0, 1, 7, 8, 100, 4095, 4096, 5000, 16_384, 70_000, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(len, seed as u64);
            let offset = (1 << 20) - len as u64;
            pair.client
                .execute(&mut [Verb::Write {
                    to: at(key, offset),
                    bytes: &bytes,
                }])
                .await
                .unwrap();
            assert!(bytes_of(&buffer, offset as usize, len) == bytes, "{len}");
            let mut found = vec![0; len];
            pair.client
                .execute(&mut [Verb::Read {
                    from: at(key, offset),
                    into: &mut found,
                }])
                .await
                .unwrap();
            assert!(found == bytes, "{len}");
        }
        assert!(pair.events.is_empty(), "one-sided operations raise no event");
    });
}

#[test]
fn a_memory_region_begins_where_it_was_registered() {
    on_every_provider(async |pair: Pair| {
        let buffer = Buffer::new(10_000);
        let key = pair
            .server_regions
            .register(Memory::Buffer(buffer.clone()), 1000, 500, Access::ALL);
        pair.client
            .execute(&mut [Verb::Write {
                to: at(key, 3),
                bytes: b"abc",
            }])
            .await
            .unwrap();
        assert_eq!(bytes_of(&buffer, 1002, 5), b"\0abc\0");
    });
}

#[test]
fn pools_are_reached_like_buffers() {
    on_every_provider(async |pair: Pair| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut pools = vec![Pmem::create(&dir.path().join("pool"), 1 << 20, None).unwrap()];
        if pair.is_simulated {
            pools.push(Pmem::simulated(1 << 20));
        }
        for pool in pools {
            let key = pair
                .server_regions
                .register(Memory::Pool(pool.clone()), 4096, 1 << 19, Access::ALL);
            let bytes = pattern(200_000, 5);
            let (mut found, mut word, mut sum) = (vec![0; 200_000], 0, 0);
            let mut batch = [
                Verb::Write {
                    to: at(key, 16),
                    bytes: &bytes,
                },
                Verb::Write {
                    to: at(key, 8),
                    bytes: &77u64.to_ne_bytes(),
                },
                Verb::Flush {
                    at: at(key, 0),
                    len: 300_000,
                },
                Verb::Read {
                    from: at(key, 16),
                    into: &mut found,
                },
                Verb::CompareSwap {
                    at: at(key, 8),
                    expect: 77,
                    new: 78,
                    found: &mut word,
                },
                Verb::FetchAdd {
                    at: at(key, 8),
                    add: 2,
                    found: &mut sum,
                },
            ];
            pair.client.execute(&mut batch).await.unwrap();
            assert!(found == bytes);
            assert_eq!((word, sum, pool.read_u64(4096 + 8)), (77, 78, 80));
        }
    });
}

#[test]
fn bytes_move_between_memory_of_both_sides_in_place() {
    on_every_provider(async |pair: Pair| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mapped = Pmem::create(&dir.path().join("pool"), 1 << 20, None).unwrap();
        let here = [
            Memory::Buffer(Buffer::new(1 << 20)),
            Memory::Pool(mapped),
            Memory::Pool(Pmem::simulated(1 << 20)),
        ];
        let (there, key) = pair.buffer(1 << 20, Access::ALL);
        for memory in &here {
            for (seed, len) in [0, 8, 100, 4096, 5000, 70_000, 300_000].into_iter().enumerate() {
                let bytes = pattern(len, seed as u64);
                there.write(5, &bytes);
                let local = |offset| Local {
                    memory,
                    offset,
                    len: len as u64,
                };
                let mut batch = [
                    Verb::ReadInto {
                        from: at(key, 5),
                        into: local(77),
                    },
                    Verb::ReadInto {
                        from: at(key, 5),
                        into: local(500_000),
                    },
                ];
                pair.client.execute(&mut batch).await.unwrap();
                let mut batch = [Verb::WriteFrom {
                    to: at(key, 400_001),
                    from: local(500_000),
                }];
                pair.client.execute(&mut batch).await.unwrap();
                assert!(bytes_of(&there, 400_001, len) == bytes, "{len}");
                let mut batch = [Verb::WriteFrom {
                    to: at(key, 700_000),
                    from: local(77),
                }];
                pair.client.execute_unsignaled(&mut batch).await.unwrap();
                // whatever comes later is behind it
                pair.client
                    .execute(&mut [Verb::Flush { at: at(key, 0), len: 8 }])
                    .await
                    .unwrap();
                assert!(bytes_of(&there, 700_000, len) == bytes, "{len}");
                if let Memory::Pool(pool) = memory
                    && let Some(sim) = pool.sim()
                {
                    assert_eq!(sim.pending_lines(), 0, "what was read is durable");
                }
            }
        }
        let memory = &here[0];
        let local = Local {
            memory,
            offset: 0,
            len: 100,
        };
        let mut batch = [Verb::ReadInto {
            from: at(key, (1 << 20) - 99),
            into: local,
        }];
        let refused = pair.client.execute(&mut batch).await;
        assert!(
            matches!(refused, Err(FabricError::OutOfRange { len: 100, .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn atomics_tell_what_they_found() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(64, Access::ALL);
        buffer.write(8, &10u64.to_ne_bytes());
        let (mut a, mut b, mut c) = (0, 0, 0);
        let mut batch = [
            Verb::CompareSwap {
                at: at(key, 8),
                expect: 11,
                new: 12,
                found: &mut a,
            },
            Verb::CompareSwap {
                at: at(key, 8),
                expect: 10,
                new: 13,
                found: &mut b,
            },
            Verb::FetchAdd {
                at: at(key, 8),
                add: u64::MAX,
                found: &mut c,
            },
        ];
        pair.client.execute(&mut batch).await.unwrap();
        assert_eq!((a, b, c), (10, 10, 13));
        assert_eq!(bytes_of(&buffer, 8, 8), 12u64.to_ne_bytes());
    });
}

#[test]
fn messages_and_immediates_arrive_in_order_with_what_was_written_before() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(1 << 18, Access::WRITE);
        let none = Remote {
            key: RemoteKey(0),
            offset: 0,
        };
        for len in [0, 5, 5000, 200_000] {
            let bytes = pattern(len, 9);
            let message = pattern(len.min(MAX_SEND), 10);
            let mut batch = [
                Verb::WriteImm {
                    to: none,
                    bytes: &[],
                    imm: u32::MAX,
                },
                Verb::WriteImm {
                    to: at(key, 3),
                    bytes: &bytes,
                    imm: 17,
                },
                Verb::Send { bytes: &message },
            ];
            pair.client.execute(&mut batch).await.unwrap();
            assert_eq!(pair.events.next().await, Some(Event::Immediate(u32::MAX)));
            assert_eq!(pair.events.next().await, Some(Event::Immediate(17)));
            assert!(bytes_of(&buffer, 3, len) == bytes);
            assert_eq!(pair.events.next().await, Some(Event::Message(message)));
        }
    });
}

#[test]
fn both_ends_may_initiate() {
    on_every_provider(async |pair: Pair| {
        let buffer = Buffer::new(1 << 20);
        let key = pair
            .client_regions
            .register(Memory::Buffer(buffer.clone()), 0, 1 << 20, Access::ALL);
        let (other, other_key) = pair.buffer(1 << 20, Access::ALL);
        let bytes = pattern(1 << 20, 3);
        let listener = pair.client.clone();
        let listening = tokio::task::spawn_local(async move { listener.next_event().await });
        let (mut there, mut here) = (
            [Verb::Write {
                to: at(other_key, 0),
                bytes: &bytes,
            }],
            [Verb::Write {
                to: at(key, 0),
                bytes: &bytes,
            }],
        );
        let (a, b) = tokio::join!(pair.client.execute(&mut there), pair.server.execute(&mut here));
        a.and(b).unwrap();
        assert!(bytes_of(&buffer, 0, 1 << 20) == bytes && bytes_of(&other, 0, 1 << 20) == bytes);
        let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let (mut there, mut here) = (
            [Verb::Read {
                from: at(other_key, 0),
                into: &mut a,
            }],
            [Verb::Read {
                from: at(key, 0),
                into: &mut b,
            }],
        );
        let (first, second) = tokio::join!(pair.client.execute(&mut there), pair.server.execute(&mut here));
        first.and(second).unwrap();
        assert!(a == bytes && b == bytes);
        pair.server
            .execute(&mut [Verb::Send {
                bytes: b"to the client",
            }])
            .await
            .unwrap();
        assert_eq!(
            listening.await.unwrap(),
            Some(Event::Message(b"to the client".to_vec()))
        );
    });
}

#[test]
fn a_batch_stops_at_the_first_verb_that_fails_and_the_connection_lives() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(100_000, Access::ALL);
        let read_only = pair
            .server_regions
            .register(Memory::Buffer(buffer.clone()), 0, 100, Access::READ);
        let no_key = RemoteKey(key.0 ^ (1 << 60));
        let big = vec![1; 50_000];
        let wrong: [(RemoteKey, u64, usize, FabricError); 5] = [
            (no_key, 0, 8, FabricError::BadKey { key: no_key.0 }),
            (RemoteKey(0), 0, 8, FabricError::BadKey { key: 0 }),
            (read_only, 0, 8, FabricError::Denied { key: read_only.0 }),
            (
                key,
                99_999,
                2,
                FabricError::OutOfRange {
                    key: key.0,
                    offset: 99_999,
                    len: 2,
                },
            ),
            (
                key,
                u64::MAX,
                50_000,
                FabricError::OutOfRange {
                    key: key.0,
                    offset: u64::MAX,
                    len: 50_000,
                },
            ),
        ];
        for (round, (bad, offset, len, error)) in wrong.into_iter().enumerate() {
            let round = round as u8 + 1;
            let before = bytes_of(&buffer, 8, 99_992);
            let mut word = 99;
            let mut batch = [
                Verb::Write {
                    to: at(key, 0),
                    bytes: &[round; 8],
                },
                Verb::Write {
                    to: at(bad, offset),
                    bytes: &big[..len],
                },
                Verb::Write {
                    to: at(key, 8),
                    bytes: &[round; 5000],
                },
                Verb::Write {
                    to: at(key, 8),
                    bytes: &[round; 8],
                },
                Verb::FetchAdd {
                    at: at(key, 8),
                    add: 1,
                    found: &mut word,
                },
                Verb::Send { bytes: b"never" },
                Verb::WriteImm {
                    to: at(key, 8),
                    bytes: &[round],
                    imm: 1,
                },
            ];
            assert_eq!(pair.client.execute(&mut batch).await, Err(error));
            assert_eq!(
                bytes_of(&buffer, 0, 8),
                [round; 8],
                "what came before the failure was done"
            );
            assert!(
                bytes_of(&buffer, 8, 99_992) == before,
                "what failed and what came after was not"
            );
            assert_eq!(word, 99);
        }
        let mut found = 0;
        for offset in [4, 99_996, 99_992 + 8] {
            let mut batch = [Verb::FetchAdd {
                at: at(key, offset),
                add: 1,
                found: &mut found,
            }];
            let error = FabricError::OutOfRange {
                key: key.0,
                offset,
                len: 8,
            };
            assert_eq!(pair.client.execute(&mut batch).await, Err(error));
        }
        let mut into = [0; 8];
        let write_only = pair
            .server_regions
            .register(Memory::Buffer(buffer.clone()), 0, 100, Access::WRITE);
        let mut batch = [Verb::Read {
            from: at(write_only, 0),
            into: &mut into,
        }];
        assert_eq!(
            pair.client.execute(&mut batch).await,
            Err(FabricError::Denied { key: write_only.0 })
        );
        let mut batch = [Verb::FetchAdd {
            at: at(write_only, 0),
            add: 1,
            found: &mut found,
        }];
        assert_eq!(
            pair.client.execute(&mut batch).await,
            Err(FabricError::Denied { key: write_only.0 })
        );
        let mut batch = [Verb::Flush {
            at: at(no_key, 0),
            len: 1,
        }];
        assert_eq!(
            pair.client.execute(&mut batch).await,
            Err(FabricError::BadKey { key: no_key.0 })
        );
        pair.client.execute(&mut [Verb::Send { bytes: b"last" }]).await.unwrap();
        assert_eq!(
            pair.events.next().await,
            Some(Event::Message(b"last".to_vec())),
            "and nothing before it"
        );
    });
}

#[test]
fn a_revoked_key_is_no_key() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(100, Access::ALL);
        pair.client
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: &[1; 8],
            }])
            .await
            .unwrap();
        pair.server_regions.deregister(key);
        let error = pair
            .client
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: &[2; 8],
            }])
            .await;
        assert_eq!(error, Err(FabricError::BadKey { key: key.0 }));
        let (_, fresh) = pair.buffer(100, Access::ALL);
        let error = pair
            .client
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: &[2; 8],
            }])
            .await;
        assert_eq!(
            error,
            Err(FabricError::BadKey { key: key.0 }),
            "also when its place is used again"
        );
        pair.client
            .execute(&mut [Verb::Write {
                to: at(fresh, 0),
                bytes: &[2; 8],
            }])
            .await
            .unwrap();
        assert_eq!(bytes_of(&buffer, 0, 8), [1; 8]);
    });
}

#[test]
fn a_message_over_the_limit_is_refused_here() {
    on_every_provider(async |pair: Pair| {
        let bytes = vec![0; MAX_SEND + 1];
        let error = pair.client.execute(&mut [Verb::Send { bytes: &bytes }]).await;
        assert!(matches!(error, Err(FabricError::TooLarge { .. })), "{error:?}");
        pair.client
            .execute(&mut [Verb::Send { bytes: &bytes[1..] }])
            .await
            .unwrap();
        assert_eq!(pair.events.next().await, Some(Event::Message(bytes[1..].to_vec())));
        pair.client.execute(&mut []).await.unwrap();
    });
}

#[test]
fn more_than_a_frame_holds_travels_in_pieces() {
    on_every_provider(async |pair: Pair| {
        let len = (33 << 20) + 12_345;
        let (buffer, key) = pair.buffer(len, Access::ALL);
        let bytes = pattern(len, 11);
        let mut found = vec![0; len];
        let mut batch = [
            Verb::WriteImm {
                to: at(key, 0),
                bytes: &bytes,
                imm: 5,
            },
            Verb::Read {
                from: at(key, 0),
                into: &mut found,
            },
        ];
        pair.client.execute(&mut batch).await.unwrap();
        assert!(found == bytes);
        assert_eq!(pair.events.next().await, Some(Event::Immediate(5)));
        // One byte too long: not even the first piece is written.
        let error = pair
            .client
            .execute(&mut [Verb::Write {
                to: at(key, 1),
                bytes: &found,
            }])
            .await;
        assert_eq!(
            error,
            Err(FabricError::OutOfRange {
                key: key.0,
                offset: 1,
                len: len as u64
            })
        );
        assert!(bytes_of(&buffer, 0, len) == bytes);
        assert!(pair.events.is_empty(), "one immediate however many pieces");
    });
}

#[test]
fn many_tasks_share_a_queue_pair() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(1 << 20, Access::ALL);
        let tasks: Vec<_> = (0..600u64)
            .map(|task| {
                let qp = pair.client.clone();
                tokio::task::spawn_local(async move {
                    // Each has an area of its own, and all share a counter.
                    let len = if task % 7 == 0 { 1500 } else { 100 };
                    let place = at(key, 64 + task * 1600);
                    for round in 0..4 {
                        let bytes = pattern(len, task * 10 + round);
                        let (mut found, mut sum) = (vec![0; len], 0);
                        let mut batch = [
                            Verb::Write {
                                to: place,
                                bytes: &bytes,
                            },
                            Verb::FetchAdd {
                                at: at(key, 0),
                                add: 1,
                                found: &mut sum,
                            },
                            Verb::Read {
                                from: place,
                                into: &mut found,
                            },
                        ];
                        qp.execute(&mut batch).await.unwrap();
                        assert!(found == bytes, "task {task} round {round}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(bytes_of(&buffer, 0, 8), 2400u64.to_ne_bytes());
        let counters = pair.client.counters();
        assert_eq!((counters.batches, counters.verbs), (2400, 7200));
    });
}

#[test]
fn many_large_transfers_at_once_keep_their_bytes_apart() {
    on_every_provider(async |pair: Pair| {
        let (_, key) = pair.buffer(16 << 20, Access::ALL);
        let tasks: Vec<_> = (0..16u64)
            .map(|task| {
                let qp = if task % 4 == 3 { None } else { Some(pair.client.clone()) };
                let local = pair.client.clone();
                tokio::task::spawn_local(async move {
                    let qp = qp.unwrap_or(local);
                    for round in 0..4 {
                        let bytes = pattern(1 << 20, task * 100 + round);
                        let mut found = vec![0; 1 << 20];
                        let place = at(key, task << 20);
                        qp.execute(&mut [Verb::Write {
                            to: place,
                            bytes: &bytes,
                        }])
                        .await
                        .unwrap();
                        qp.execute(&mut [Verb::Read {
                            from: place,
                            into: &mut found,
                        }])
                        .await
                        .unwrap();
                        assert!(found == bytes, "task {task} round {round}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn large_reads_both_ways_at_once_do_not_block_each_other() {
    on_every_provider(async |pair: Pair| {
        let (there, key) = pair.buffer(4 << 20, Access::ALL);
        let here = Buffer::new(4 << 20);
        let back = pair
            .client_regions
            .register(Memory::Buffer(here.clone()), 0, 4 << 20, Access::ALL);
        let content = Rc::new(pattern(4 << 20, 8));
        there.write(0, &content);
        here.write(0, &content);
        // The client serves the server's reads after its own are done.
        let _driven = Events::drive(&pair.client);
        let tasks: Vec<_> = (0..20)
            .flat_map(|_| [(pair.client.clone(), key), (pair.server.clone(), back)])
            .map(|(qp, key)| {
                let content = content.clone();
                tokio::task::spawn_local(async move {
                    for _ in 0..3 {
                        let mut found = vec![1; 4 << 20];
                        let mut word = [1; 8];
                        let mut batch = [
                            Verb::Read {
                                from: at(key, 0),
                                into: &mut found,
                            },
                            Verb::Read {
                                from: at(key, 0),
                                into: &mut word,
                            },
                        ];
                        qp.execute(&mut batch).await.unwrap();
                        assert!(found == *content && word == content[..8]);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Polls a future a few times and drops it.
async fn poll_and_drop(future: impl Future<Output = Result<(), FabricError>>, polls: usize) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 || future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn dropping_an_operation_under_way_harms_nothing() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(4 << 20, Access::ALL);
        let content = pattern(4 << 20, 1);
        buffer.write(0, &content);
        for round in 0..60usize {
            let len = [100, 5000, 300_000, 4 << 20][round % 4];
            let mut into = vec![0; len];
            let mut word = 0;
            let mut batch = [
                Verb::Read {
                    from: at(key, 0),
                    into: &mut into,
                },
                Verb::FetchAdd {
                    at: at(key, 0),
                    add: 0,
                    found: &mut word,
                },
            ];
            poll_and_drop(pair.client.execute(&mut batch), 1 + round % 5).await;
            drop(into);
            let same = content.clone();
            poll_and_drop(
                pair.client.execute(&mut [Verb::Write {
                    to: at(key, 0),
                    bytes: &same,
                }]),
                1 + round % 3,
            )
            .await;
            drop(same);
        }
        // Everything that was posted is through before this one, and the stream is still in step.
        let mut found = vec![0; 4 << 20];
        pair.client
            .execute(&mut [Verb::Read {
                from: at(key, 0),
                into: &mut found,
            }])
            .await
            .unwrap();
        assert!(found == content);
        assert!(pair.events.is_empty());
    });
}

/// Polls a future a few times and leaks it. True if it was pending.
async fn poll_and_leak(future: impl Future<Output = Result<(), FabricError>>, polls: usize) -> bool {
    let mut future = Box::pin(future);
    let mut left = polls;
    let is_pending = poll_fn(|cx| {
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        left -= 1;
        if left == 0 {
            return Poll::Ready(true);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    std::mem::forget(future);
    is_pending
}

/// Uses a key once: where peers map each other's memory that has happened then.
async fn reach(pair: &Pair, key: RemoteKey) {
    let flush = Verb::Flush { at: at(key, 0), len: 8 };
    pair.client.execute(&mut [flush]).await.unwrap();
}

#[test]
fn nothing_is_written_to_the_memory_of_an_operation_that_was_leaked() {
    const OURS: u8 = 0xaa;
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(4 << 20, Access::ALL);
        let content = vec![1; 4 << 20];
        buffer.write(0, &content);
        reach(&pair, key).await;
        let mut leaked = Vec::new();
        for (round, len) in [100, 5000, 300_000, 4 << 20, 100, 5000].into_iter().enumerate() {
            let (mut into, mut word) = (vec![0; len], Box::new(0));
            let mut batch = [
                Verb::Read {
                    from: at(key, 0),
                    into: &mut into,
                },
                Verb::FetchAdd {
                    at: at(key, 0),
                    add: 0,
                    found: &mut word,
                },
            ];
            if poll_and_leak(pair.client.execute(&mut batch), 1 + round % 2).await {
                into.fill(OURS);
                *word = u64::from(OURS);
                leaked.push((into, word));
            }
        }
        assert_eq!(leaked.is_empty(), pair.client.is_immediate());
        // the answers to what was leaked are there before this one's, and the stream is still in step
        for len in [8, 100_000, 4 << 20] {
            let mut found = vec![0; len];
            let read = Verb::Read {
                from: at(key, 0),
                into: &mut found,
            };
            pair.client.execute(&mut [read]).await.unwrap();
            assert!(found == content[..len], "{len}");
        }
        for (into, word) in leaked {
            assert!(into.iter().all(|byte| *byte == OURS), "{} bytes", into.len());
            assert_eq!(*word, u64::from(OURS));
        }
    });
}

#[test]
fn nothing_is_sent_from_the_memory_of_an_operation_that_was_leaked() {
    const LEN: usize = 32 << 20;
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(LEN, Access::ALL);
        reach(&pair, key).await;
        let mut bytes = vec![1; LEN];
        let mut batch = [Verb::Write {
            to: at(key, 0),
            bytes: &bytes,
        }];
        let is_pending = poll_and_leak(pair.client.execute(&mut batch), 1).await;
        bytes.fill(2);
        // some of it is on its way, and whoever else uses the connection sends no more of it
        let mut found = [0; 8];
        let mut batch = [Verb::Read {
            from: at(key, 0),
            into: &mut found,
        }];
        let other = tokio::time::timeout(Duration::from_secs(1), pair.client.execute(&mut batch)).await;
        pair.client.close();
        assert_eq!(pair.events.next().await, None);
        assert!(bytes_of(&buffer, 0, LEN).iter().all(|byte| *byte < 2));
        if is_pending && !pair.is_simulated {
            assert!(other.is_err(), "what is behind it waits");
        }
    });
}

#[test]
fn unsignaled_batches_take_effect_in_order() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(1 << 20, Access::ALL);
        for round in 0..50u32 {
            let bytes = pattern(20_000, u64::from(round));
            let mut batch = [
                Verb::Write {
                    to: at(key, 8),
                    bytes: &bytes,
                },
                Verb::WriteImm {
                    to: at(key, 0),
                    bytes: &[round as u8; 8],
                    imm: round,
                },
            ];
            pair.client.execute_unsignaled(&mut batch).await.unwrap();
            drop(bytes);
        }
        for round in 0..50 {
            assert_eq!(pair.events.next().await, Some(Event::Immediate(round)));
        }
        assert!(bytes_of(&buffer, 8, 20_000) == pattern(20_000, 49));
    });
}

#[test]
fn an_unsignaled_failure_ends_the_connection() {
    on_every_provider(async |pair: Pair| {
        let posted = pair
            .client
            .execute_unsignaled(&mut [Verb::Write {
                to: at(RemoteKey(77), 0),
                bytes: &[1],
            }])
            .await;
        // Where the initiator does the work itself it knows at once.
        if posted.is_ok() {
            let lost = pair.client.next_event().await;
            assert_eq!(lost, None);
        }
        assert!(pair.client.is_closed());
        assert_eq!(pair.events.next().await, None);
    });
}

/// What is posted behind a batch may rely on it without waiting for it.
#[test]
fn nothing_behind_an_unsignaled_failure_takes_effect() {
    for len in [1, 5000, 300_000] {
        on_every_provider(async |pair: Pair| {
            let (buffer, key) = pair.buffer(1 << 20, Access::ALL);
            let bytes = pattern(len, 3);
            let write = |key| Verb::Write {
                to: at(key, 0),
                bytes: &bytes,
            };
            // Where the initiator does the work itself it knows at once.
            let _failed = pair.client.execute_quietly(&mut [write(RemoteKey(77))]).await;
            let _behind = pair
                .client
                .execute_unsignaled(&mut [write(key), Verb::Send { bytes: b"it is there" }])
                .await;
            assert_eq!(pair.events.next().await, None, "{len}");
            assert!(bytes_of(&buffer, 0, len) == vec![0; len], "{len}");
        });
    }
}

#[test]
fn a_failure_that_is_not_reported_ends_its_batch_alone() {
    on_every_provider(async |pair: Pair| {
        let (buffer, key) = pair.buffer(1 << 20, Access::ALL);
        let (gone, revoked) = pair.buffer(1 << 20, Access::ALL);
        pair.server_regions.deregister(revoked);
        for len in [1, 5000, 300_000] {
            let bytes = pattern(len, 3);
            let mut batch = [(key, 0), (revoked, 0), (key, 500_000)].map(|(key, offset)| Verb::Write {
                to: at(key, offset),
                bytes: &bytes,
            });
            // Where the initiator does the work itself it knows at once.
            if let Err(error) = pair.client.execute_unreported(&mut batch).await {
                assert_eq!(error, FabricError::BadKey { key: revoked.0 });
            }
            // whatever comes later is behind it
            pair.client
                .execute(&mut [Verb::Flush { at: at(key, 0), len: 8 }])
                .await
                .unwrap();
            assert!(bytes_of(&buffer, 0, len) == bytes, "{len}");
            assert!(bytes_of(&buffer, 500_000, len) == vec![0; len], "{len}");
            assert!(bytes_of(&gone, 0, len) == vec![0; len], "{len}");
        }
        assert!(pair.events.is_empty());
    });
}

#[test]
fn closing_ends_both_sides() {
    on_every_provider(async |pair: Pair| {
        let (_, key) = pair.buffer(1 << 20, Access::ALL);
        pair.client
            .execute(&mut [Verb::Send { bytes: b"first" }])
            .await
            .unwrap();
        pair.client.close();
        assert!(pair.client.is_closed());
        let error = pair
            .client
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: &[1],
            }])
            .await;
        assert!(matches!(error, Err(FabricError::Disconnected { .. })), "{error:?}");
        assert_eq!(pair.client.next_event().await, None);
        assert_eq!(
            pair.events.next().await,
            Some(Event::Message(b"first".to_vec())),
            "what had arrived is delivered"
        );
        assert_eq!(pair.events.next().await, None);
        assert!(pair.server.is_closed());
        let error = pair.server.execute(&mut [Verb::Send { bytes: &[1] }]).await;
        assert!(matches!(error, Err(FabricError::Disconnected { .. })), "{error:?}");
    });
}

#[test]
fn a_peer_that_goes_away_fails_what_is_under_way() {
    on_every_provider(async |pair: Pair| {
        let (_, key) = pair.buffer(8 << 20, Access::ALL);
        let tasks: Vec<_> = (0..300)
            .map(|task| {
                let qp = pair.client.clone();
                tokio::task::spawn_local(async move {
                    let mut into = vec![0; 1 << 20];
                    loop {
                        let mut batch = [Verb::Read {
                            from: at(key, task % 7),
                            into: &mut into,
                        }];
                        if let Err(error) = qp.execute(&mut batch).await {
                            return error;
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let listener = pair.client.clone();
        let listening = tokio::task::spawn_local(async move { listener.next_event().await });
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        pair.server.close();
        for task in tasks {
            let error = task.await.unwrap();
            assert!(matches!(error, FabricError::Disconnected { .. }), "{error:?}");
        }
        assert_eq!(listening.await.unwrap(), None);
    });
}
