//! Calls over every provider, and peers that break the rules.

#[path = "../../fabric/tests/support/mod.rs"]
mod support;

use polvo_fabric::{
    Access, Buffer, Event, FabricError, Memory, MemoryRegions, QueuePair, Remote, RemoteKey, Role, Verb, connect,
};
use polvo_rpc::{MAX_REPLY, MAX_REQUEST, RpcClient, RpcError, SLOTS, serve};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use support::{Provider, TIMEOUT, at, block_on, identity, on_each_provider, pattern, place};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Both ends of a connection nobody drives yet.
struct Ends {
    client: QueuePair,
    client_regions: Arc<MemoryRegions>,
    server: QueuePair,
    server_regions: Arc<MemoryRegions>,
    is_simulated: bool,
}

async fn ends(provider: Provider) -> Ends {
    let place = place(&provider);
    let (client_regions, server_regions) = (MemoryRegions::new(), MemoryRegions::new());
    let me = identity(Role::Node(1));
    let mut listener = polvo_fabric::Listener::bind(&place.address, &me, &server_regions)
        .await
        .unwrap();
    let (addr, me) = (listener.local_addr(), identity(Role::Client));
    let (client, server) = tokio::join!(connect(&addr, &me, &client_regions, TIMEOUT), listener.accept());
    let is_simulated = matches!(provider, Provider::Sim(_));
    Ends {
        client: client.unwrap(),
        client_regions,
        server: server.unwrap(),
        server_regions,
        is_simulated,
    }
}

fn on_every_provider(body: impl AsyncFn(Ends)) {
    on_each_provider(async |provider| body(ends(provider).await).await);
}

impl Ends {
    fn serve<F>(&self, handler: impl Fn(Vec<u8>) -> F + 'static) -> JoinHandle<Result<(), RpcError>>
    where
        F: Future<Output = Vec<u8>> + 'static,
    {
        let (qp, regions) = (self.server.clone(), self.server_regions.clone());
        tokio::task::spawn_local(async move { serve(qp, &regions, handler).await })
    }

    async fn establish(&self) -> RpcClient {
        RpcClient::establish(self.client.clone(), &self.client_regions, TIMEOUT)
            .await
            .unwrap()
    }
}

async fn backwards(mut request: Vec<u8>) -> Vec<u8> {
    request.reverse();
    request
}

#[test]
fn a_call_brings_the_reply_to_its_request() {
    on_every_provider(async |ends: Ends| {
        let serving = ends.serve(backwards);
        let rpc = ends.establish().await;
        for len in [0, 1, 64, 4095, 4096, 10_000, MAX_REQUEST] {
            let request = pattern(len, len as u64);
            let mut reply = rpc.call(&request, TIMEOUT).await.unwrap();
            reply.reverse();
            assert!(reply == request, "{len}");
        }
        let too_large = rpc.call(&vec![0; MAX_REQUEST + 1], TIMEOUT).await;
        assert_eq!(too_large, Err(RpcError::TooLarge(MAX_REQUEST + 1)));
        assert!(!rpc.is_closed());
        rpc.queue_pair().close();
        assert_eq!(serving.await.unwrap(), Ok(()), "a peer that leaves is no error");
        assert!(rpc.is_closed());
        let error = rpc.call(b"?", TIMEOUT).await;
        assert!(
            matches!(error, Err(RpcError::Fabric(FabricError::Disconnected { .. }))),
            "{error:?}"
        );
    });
}

#[test]
fn a_reply_may_be_as_large_as_the_limit_and_no_larger() {
    on_every_provider(async |ends: Ends| {
        ends.serve(|request| async move { pattern(MAX_REPLY + request.len() - 3, 1) });
        let rpc = ends.establish().await;
        assert!(rpc.call(b"abc", TIMEOUT).await.unwrap() == pattern(MAX_REPLY, 1));
        let error = rpc.call(b"abcd", TIMEOUT).await;
        assert!(
            matches!(error, Err(RpcError::Fabric(FabricError::Disconnected { .. }))),
            "{error:?}"
        );
    });
}

#[test]
fn a_reply_comes_into_the_buffer_of_the_caller() {
    on_every_provider(async |ends: Ends| {
        ends.serve(backwards);
        let rpc = ends.establish().await;
        let mut reply = vec![9; 5000];
        let place = reply.as_ptr();
        for len in [5000, 0, 1, 64, 4999] {
            let request = pattern(len, len as u64);
            rpc.call_into(&request, &mut reply, TIMEOUT).await.unwrap();
            reply.reverse();
            assert!(reply == request, "{len}");
            assert_eq!(reply.as_ptr(), place, "nothing is allocated where there is room");
        }
    });
}

#[test]
fn requests_that_come_together_are_answered_whatever_their_sizes() {
    on_every_provider(async |ends: Ends| {
        ends.serve(|request| async move {
            if request[0].is_multiple_of(5) {
                tokio::task::yield_now().await;
            }
            let len = [1, 4095, 4096, 20_000][usize::from(request[0]) % 4];
            pattern(len, u64::from(request[0]))
        });
        let rpc = ends.establish().await;
        let calls: Vec<_> = (0..4 * SLOTS as u8)
            .map(|call| {
                let rpc = rpc.clone();
                tokio::task::spawn_local(async move {
                    let reply = rpc.call(&[call], TIMEOUT).await.unwrap();
                    let len = [1, 4095, 4096, 20_000][usize::from(call) % 4];
                    assert!(reply == pattern(len, u64::from(call)), "call {call}");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
}

#[test]
fn more_calls_than_slots_are_all_answered() {
    on_every_provider(async |ends: Ends| {
        let (now, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (counting, peak) = (now.clone(), most.clone());
        ends.serve(move |request| {
            let (now, most) = (counting.clone(), peak.clone());
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                // Answered out of order.
                for _ in 0..request[0] % 7 {
                    tokio::task::yield_now().await;
                }
                now.set(now.get() - 1);
                backwards(request).await
            }
        });
        let rpc = ends.establish().await;
        let calls: Vec<_> = (0..200u64)
            .map(|call| {
                let rpc = rpc.clone();
                tokio::task::spawn_local(async move {
                    let request = pattern(1 + (call as usize * 331) % 6000, call);
                    let mut reply = rpc.call(&request, TIMEOUT).await.unwrap();
                    reply.reverse();
                    assert!(reply == request, "call {call}");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert!(most.get() > 1 && most.get() <= SLOTS, "{} at a time", most.get());
    });
}

#[test]
fn one_sided_operations_go_beside_calls() {
    on_every_provider(async |ends: Ends| {
        let buffer = Buffer::new(1 << 20);
        let key = ends
            .server_regions
            .register(Memory::Buffer(buffer.clone()), 0, 1 << 20, Access::ALL);
        ends.serve(backwards);
        let rpc = ends.establish().await;
        let calling = rpc.clone();
        let calls = tokio::task::spawn_local(async move {
            for _ in 0..100 {
                assert_eq!(calling.call(b"ab", TIMEOUT).await.unwrap(), b"ba");
            }
        });
        for round in 0..50 {
            let bytes = pattern(50_000, round);
            let mut found = vec![0; 50_000];
            let mut batch = [
                Verb::Write {
                    to: at(key, 0),
                    bytes: &bytes,
                },
                Verb::Read {
                    from: at(key, 0),
                    into: &mut found,
                },
            ];
            rpc.queue_pair().execute(&mut batch).await.unwrap();
            assert!(found == bytes);
        }
        calls.await.unwrap();
    });
}

#[test]
fn a_call_that_takes_too_long_is_given_up_and_its_late_reply_discarded() {
    on_every_provider(async |ends: Ends| {
        let go = Rc::new(Notify::new());
        let waiting = go.clone();
        ends.serve(move |request| {
            let go = waiting.clone();
            async move {
                if request == b"wait" {
                    go.notified().await;
                }
                request
            }
        });
        let rpc = ends.establish().await;
        let short = Duration::from_millis(20);
        // All slots are taken by calls that were given up, so the next one finds none.
        for _ in 0..SLOTS {
            let error = rpc.call(b"wait", short).await;
            assert!(
                matches!(error, Err(RpcError::Fabric(FabricError::TimedOut { ms: 20, .. }))),
                "{error:?}"
            );
        }
        let error = rpc.call(b"next", short).await;
        assert!(
            matches!(error, Err(RpcError::Fabric(FabricError::TimedOut { .. }))),
            "{error:?}"
        );
        // The late replies free them.
        for _ in 0..SLOTS {
            go.notify_waiters();
            go.notify_one();
            assert_eq!(rpc.call(b"next", TIMEOUT).await.unwrap(), b"next");
        }
        for _ in 0..3 * SLOTS {
            assert_eq!(rpc.call(b"more", TIMEOUT).await.unwrap(), b"more");
        }
    });
}

#[test]
fn dropped_calls_do_not_disturb_others() {
    on_every_provider(async |ends: Ends| {
        ends.serve(backwards);
        let rpc = ends.establish().await;
        for round in 0..100u8 {
            let calling = rpc.clone();
            let dropped = tokio::task::spawn_local(async move { calling.call(b"dropped", TIMEOUT).await });
            for _ in 0..round % 4 {
                tokio::task::yield_now().await;
            }
            dropped.abort();
            assert_eq!(rpc.call(&[round, 1], TIMEOUT).await.unwrap(), [1, round]);
        }
    });
}

#[test]
fn a_server_that_goes_away_fails_what_is_under_way() {
    on_every_provider(async |ends: Ends| {
        let calls = Rc::new(Cell::new(0));
        let (seen, server) = (calls.clone(), ends.server.clone());
        ends.serve(move |request| {
            let (seen, server) = (seen.clone(), server.clone());
            async move {
                seen.set(seen.get() + 1);
                if seen.get() == 11 {
                    server.close();
                }
                if seen.get() > 6 {
                    std::future::pending().await
                } else {
                    request
                }
            }
        });
        let rpc = ends.establish().await;
        // Replies to later ones go out at once.
        rpc.call(b"first", TIMEOUT).await.unwrap();
        let results = Rc::new(RefCell::new(Vec::new()));
        let calls: Vec<_> = (0..40)
            .map(|_| {
                let (rpc, results) = (rpc.clone(), results.clone());
                tokio::task::spawn_local(async move {
                    let result = rpc.call(b"x", TIMEOUT).await;
                    results.borrow_mut().push(result.is_ok());
                    if let Err(error) = result {
                        assert!(
                            matches!(error, RpcError::Fabric(FabricError::Disconnected { .. })),
                            "{error:?}"
                        );
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(results.borrow().iter().filter(|ok| **ok).count(), 5);
    });
}

#[test]
fn setting_up_with_a_silent_server_is_given_up() {
    on_every_provider(async |ends: Ends| {
        let silent = support::Events::drive(&ends.server);
        let timeout = if ends.is_simulated {
            TIMEOUT
        } else {
            Duration::from_millis(50)
        };
        let error = RpcClient::establish(ends.client.clone(), &ends.client_regions, timeout)
            .await
            .err();
        assert!(
            matches!(error, Some(RpcError::Fabric(FabricError::TimedOut { .. }))),
            "{error:?}"
        );
        assert!(silent.is_empty());
    });
}

/// The parts of the protocol, spelt out, so that they can be got wrong.
mod raw {
    use super::*;

    pub const REQUEST_STRIDE: u64 = 16 + MAX_REQUEST as u64;

    pub fn setup(key: RemoteKey, client: u32) -> Vec<u8> {
        let mut bytes = [&b"PRPC"[..], &[2, 0, SLOTS as u8, 0], &client.to_le_bytes(), &[0; 4]].concat();
        bytes.extend_from_slice(&key.0.to_le_bytes());
        bytes
    }

    pub fn parse_setup(bytes: &[u8]) -> (RemoteKey, u32) {
        let key = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        (RemoteKey(key), u32::from_le_bytes(bytes[8..12].try_into().unwrap()))
    }

    pub fn message(len: u32, sequence: u32, body: &[u8]) -> Vec<u8> {
        [&b"PRPC"[..], &len.to_le_bytes(), &sequence.to_le_bytes(), &[0; 4], body].concat()
    }
}

fn is_malformed<T>(result: &Result<T, RpcError>) -> bool {
    matches!(result, Err(RpcError::Malformed { .. }))
}

#[test]
fn a_caller_that_lies_is_thrown_out() {
    type Lie = fn(RemoteKey, u32) -> Vec<(Vec<u8>, u64, u32)>;
    let lies: [(&str, Lie); 8] = [
        ("nothing written", |_, client| vec![(vec![], 0, client << 8)]),
        ("another client", |_, client| {
            vec![(raw::message(1, 1, b"x"), 0, (client + 1) << 8)]
        }),
        ("no such slot", |_, client| {
            vec![(raw::message(1, 1, b"x"), 0, client << 8 | 200)]
        }),
        ("another slot than written", |_, client| {
            vec![(raw::message(1, 1, b"x"), 0, client << 8 | 1)]
        }),
        ("too long", |_, client| {
            vec![(raw::message(MAX_REQUEST as u32 + 1, 1, b"x"), 0, client << 8)]
        }),
        ("very long", |_, client| {
            vec![(raw::message(u32::MAX, 1, b"x"), 0, client << 8)]
        }),
        ("wrong sequence", |_, client| {
            vec![(raw::message(1, 2, b"x"), 0, client << 8)]
        }),
        ("slot in use", |_, client| {
            let at = raw::REQUEST_STRIDE;
            vec![
                (raw::message(1, 1, b"x"), at, client << 8 | 1),
                (raw::message(1, 2, b"x"), at, client << 8 | 1),
            ]
        }),
    ];
    for (what, lie) in lies {
        println!("lie: {what}");
        on_every_provider(async |ends: Ends| {
            let serving = ends.serve(|_| std::future::pending());
            let Some(Event::Message(setup)) = ends.client.next_event().await else {
                panic!("no setup")
            };
            let (key, client) = raw::parse_setup(&setup);
            let ours = Buffer::new(SLOTS * (16 + MAX_REPLY));
            let len = ours.len() as u64;
            let replies = ends
                .client_regions
                .register(Memory::Buffer(ours), 0, len, Access::WRITE);
            let setup = raw::setup(replies, client);
            ends.client
                .execute_unsignaled(&mut [Verb::Send { bytes: &setup }])
                .await
                .unwrap();
            for (bytes, offset, imm) in lie(key, client) {
                let to = if bytes.is_empty() {
                    Remote {
                        key: RemoteKey(0),
                        offset: 0,
                    }
                } else {
                    at(key, offset)
                };
                let _ = ends
                    .client
                    .execute_unsignaled(&mut [Verb::WriteImm { to, bytes: &bytes, imm }])
                    .await;
            }
            assert_eq!(ends.client.next_event().await, None, "{what}");
            assert!(is_malformed(&serving.await.unwrap()), "{what}");
        });
    }
}

#[test]
fn a_caller_that_skips_the_setup_is_thrown_out() {
    let firsts: [Verb<'static>; 3] = [
        Verb::Send { bytes: b"hello" },
        Verb::Send { bytes: &[0; 24] },
        Verb::WriteImm {
            to: Remote {
                key: RemoteKey(0),
                offset: 0,
            },
            bytes: &[],
            imm: 0,
        },
    ];
    let firsts = RefCell::new(firsts);
    for index in 0..3 {
        on_every_provider(async |ends: Ends| {
            let serving = ends.serve(backwards);
            assert!(ends.client.next_event().await.is_some());
            let mut firsts = firsts.take_one(index);
            ends.client
                .execute_unsignaled(std::slice::from_mut(&mut firsts))
                .await
                .unwrap();
            assert_eq!(ends.client.next_event().await, None);
            assert!(is_malformed(&serving.await.unwrap()));
        });
    }
}

/// A copy of one of the verbs (which own nothing).
trait TakeOne {
    fn take_one(&self, index: usize) -> Verb<'static>;
}

impl TakeOne for RefCell<[Verb<'static>; 3]> {
    fn take_one(&self, index: usize) -> Verb<'static> {
        match &self.borrow()[index] {
            Verb::Send { bytes } => Verb::Send { bytes },
            Verb::WriteImm { to, bytes, imm } => Verb::WriteImm {
                to: *to,
                bytes,
                imm: *imm,
            },
            _ => unreachable!("there are no others"),
        }
    }
}

#[test]
fn a_server_that_lies_is_left() {
    type Lie = fn(RemoteKey) -> Vec<(Vec<u8>, u64, u32)>;
    let lies: [(&str, Lie); 6] = [
        ("nothing written", |_| vec![(vec![], 0, 0)]),
        ("no such slot", |_| vec![(raw::message(1, 1, b"x"), 0, 16)]),
        ("another slot", |_| vec![(raw::message(1, 1, b"x"), 0, 1)]),
        ("too long", |_| {
            vec![(raw::message(MAX_REPLY as u32 + 1, 1, b"x"), 0, 0)]
        }),
        ("wrong sequence", |_| vec![(raw::message(1, 9, b"x"), 0, 0)]),
        ("two replies", |_| {
            vec![(raw::message(1, 1, b"x"), 0, 0), (raw::message(1, 1, b"x"), 0, 0)]
        }),
    ];
    for (what, lie) in lies {
        println!("lie: {what}");
        on_every_provider(async |ends: Ends| {
            let ours = Buffer::new(SLOTS * (16 + MAX_REQUEST));
            let len = ours.len() as u64;
            let pool = ends
                .server_regions
                .register(Memory::Buffer(ours), 0, len, Access::WRITE);
            let server = ends.server.clone();
            let lying = tokio::task::spawn_local(async move {
                let setup = raw::setup(pool, 3);
                server
                    .execute_unsignaled(&mut [Verb::Send { bytes: &setup }])
                    .await
                    .unwrap();
                let Some(Event::Message(theirs)) = server.next_event().await else {
                    panic!("no setup")
                };
                let (key, client) = raw::parse_setup(&theirs);
                assert_eq!(client, 3);
                assert_eq!(
                    server.next_event().await,
                    Some(Event::Immediate(3 << 8)),
                    "the first request"
                );
                for (bytes, offset, imm) in lie(key) {
                    let to = if bytes.is_empty() {
                        Remote {
                            key: RemoteKey(0),
                            offset: 0,
                        }
                    } else {
                        at(key, offset)
                    };
                    let _ = server
                        .execute_unsignaled(&mut [Verb::WriteImm { to, bytes: &bytes, imm }])
                        .await;
                }
                // Another request may have been under way.
                while server.next_event().await.is_some() {}
            });
            let rpc = ends.establish().await;
            let first = rpc.call(b"truth?", TIMEOUT).await;
            if first == Ok(b"x".to_vec()) {
                let second = rpc.call(b"truth?", TIMEOUT).await;
                assert!(is_malformed(&second), "{what}: {second:?}");
            } else {
                assert!(is_malformed(&first), "{what}: {first:?}");
            }
            assert!(rpc.is_closed());
            lying.await.unwrap();
        });
    }
}

#[test]
fn a_server_on_another_thread_serves_several_clients() {
    for provider in [Provider::Tcp, Provider::Shm] {
        println!("provider: {provider:?}");
        let place = place(&provider);
        let (tell, told) = std::sync::mpsc::channel();
        let address = place.address.clone();
        let server = std::thread::spawn(move || {
            block_on(async {
                let regions = MemoryRegions::new();
                let me = identity(Role::Node(1));
                let mut listener = polvo_fabric::Listener::bind(&address, &me, &regions).await.unwrap();
                tell.send(listener.local_addr()).unwrap();
                let mut serving = Vec::new();
                for _ in 0..4 {
                    let (qp, regions) = (listener.accept().await.unwrap(), regions.clone());
                    serving.push(tokio::task::spawn_local(
                        async move { serve(qp, &regions, backwards).await },
                    ));
                }
                for task in serving {
                    task.await.unwrap().unwrap();
                }
            });
        });
        let addr = told.recv().unwrap();
        let clients: Vec<_> = (0..4u64)
            .map(|client| {
                let addr = addr.clone();
                std::thread::spawn(move || {
                    block_on(async {
                        let regions = MemoryRegions::new();
                        let qp = connect(&addr, &identity(Role::Client), &regions, TIMEOUT)
                            .await
                            .unwrap();
                        let rpc = RpcClient::establish(qp, &regions, TIMEOUT).await.unwrap();
                        for call in 0..500 {
                            let request = pattern(1 + (call as usize * 37) % 5000, client * 1000 + call);
                            let mut reply = rpc.call(&request, TIMEOUT).await.unwrap();
                            reply.reverse();
                            assert!(reply == request, "client {client} call {call}");
                        }
                        rpc.queue_pair().close();
                    });
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        server.join().unwrap();
    }
}
