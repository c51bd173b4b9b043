//! All ways of RPC answer calls; what is compared does the same thing.

#[path = "../../fabric/tests/support/mod.rs"]
mod support;

use polvo_bench::rpc_scheme::{Caller, MessageBased, Polled, Scheme, SelfIdentified};
use polvo_fabric::{Listener, MemoryRegions, Role, connect};
use polvo_rpc::{RpcError, SLOTS};
use support::{Provider, TIMEOUT, identity, on_each_provider, pattern, place};
use tokio::sync::mpsc;

/// A server and a few clients on one thread; the body gets the clients.
async fn with_clients<S: Scheme>(provider: Provider, clients: usize, body: impl AsyncFnOnce(Vec<S::Caller>)) {
    let place = place(&provider);
    let regions = MemoryRegions::new();
    let me = identity(Role::Node(1));
    let mut listener = Listener::bind(&place.address, &me, &regions).await.unwrap();
    let addr = listener.local_addr();
    let (arrive, arrivals) = mpsc::channel(clients);
    let backwards = |mut request: Vec<u8>| async move {
        request.reverse();
        request
    };
    let serving = tokio::task::spawn_local(S::serve_all(arrivals, regions, backwards));
    let mut callers = Vec::new();
    for _ in 0..clients {
        let (me, ours) = (identity(Role::Client), MemoryRegions::new());
        let (near, far) = tokio::join!(connect(&addr, &me, &ours, TIMEOUT), listener.accept());
        arrive.send(far.unwrap()).await.unwrap();
        callers.push(S::establish(near.unwrap(), &ours, TIMEOUT).await.unwrap());
    }
    body(callers.clone()).await;
    for caller in &callers {
        caller.queue_pair().close();
    }
    drop(arrive);
    serving.await.unwrap();
}

async fn answers_calls<S: Scheme>(provider: Provider) {
    println!("scheme: {}", S::NAME);
    with_clients::<S>(provider, 3, async |callers| {
        let mut reply = b"left over".to_vec();
        for len in [0, 1, 7, 8, 64, 1000, 4096, S::REQUEST_MAX] {
            for (index, caller) in callers.iter().enumerate() {
                let request = pattern(len, (len + index) as u64);
                caller.call_into(&request, &mut reply, TIMEOUT).await.unwrap();
                reply.reverse();
                assert!(reply == request, "{len} bytes of client {index}");
            }
        }
        let too_large = callers[0]
            .call_into(&vec![0; S::REQUEST_MAX + 1], &mut reply, TIMEOUT)
            .await;
        assert_eq!(too_large, Err(RpcError::TooLarge(S::REQUEST_MAX + 1)));
        // more than there are slots, on all connections at once
        let calls: Vec<_> = (0..6 * SLOTS)
            .map(|call| {
                let caller = callers[call % callers.len()].clone();
                tokio::task::spawn_local(async move {
                    let request = pattern(1 + call * 13, call as u64);
                    let mut reply = Vec::new();
                    caller.call_into(&request, &mut reply, TIMEOUT).await.unwrap();
                    reply.reverse();
                    assert!(reply == request, "call {call}");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    })
    .await;
}

#[test]
fn all_ways_of_rpc_answer_the_same() {
    on_each_provider(async |provider| {
        answers_calls::<SelfIdentified>(provider.clone()).await;
        answers_calls::<MessageBased>(provider.clone()).await;
        // who polls memory does not let simulated time go on
        if !matches!(provider, Provider::Sim(_)) {
            answers_calls::<Polled>(provider).await;
        }
    });
}

#[test]
fn a_call_over_a_lost_connection_fails() {
    async fn fails<S: Scheme>(provider: Provider) {
        with_clients::<S>(provider, 1, async |callers| {
            callers[0].queue_pair().close();
            let mut reply = Vec::new();
            let error = callers[0].call_into(b"?", &mut reply, TIMEOUT).await;
            assert!(matches!(error, Err(RpcError::Fabric(_))), "{}: {error:?}", S::NAME);
        })
        .await;
    }
    on_each_provider(async |provider| {
        fails::<SelfIdentified>(provider.clone()).await;
        fails::<MessageBased>(provider.clone()).await;
        if !matches!(provider, Provider::Sim(_)) {
            fails::<Polled>(provider).await;
        }
    });
}
