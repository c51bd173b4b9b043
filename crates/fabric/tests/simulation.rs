//! The simulated network: the same seed gives the same run, and faults do what they say.

use crate::support::{Events, Pair, Provider, TIMEOUT, at, bytes_of, identity, pair, runtime};
use polvo_fabric::sim::Network;
use polvo_fabric::{Access, Event, FabricError, Listener, MemoryRegions, QueuePair, Role, Verb, connect};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

fn simulate<T>(network: &Network, what: impl Future<Output = T>) -> T {
    let _entered = network.enter();
    let runtime = runtime(true);
    tokio::task::LocalSet::new().block_on(&runtime, what)
}

async fn simulated_pair(network: &Network) -> Pair {
    pair(&Provider::Sim(network.seed())).await
}

/// Five clients send numbered messages to one server; returns what arrived in which order, and when.
fn trace(seed: u64) -> Vec<(u8, u8, Duration)> {
    let network = Network::new(seed);
    simulate(&network, async {
        let regions = MemoryRegions::new();
        let mut listener = Listener::bind(&"sim://server".parse().unwrap(), &identity(Role::Node(0)), &regions)
            .await
            .unwrap();
        let start = Instant::now();
        let trace = Rc::new(RefCell::new(Vec::new()));
        for client in 0..5u8 {
            tokio::task::spawn_local(async move {
                let regions = MemoryRegions::new();
                let me = identity(Role::Node(u16::from(client)));
                let qp = connect(&"sim://server".parse().unwrap(), &me, &regions, TIMEOUT)
                    .await
                    .unwrap();
                for number in 0..20 {
                    qp.execute(&mut [Verb::Send {
                        bytes: &[client, number],
                    }])
                    .await
                    .unwrap();
                }
                qp.close();
            });
        }
        let mut serving = Vec::new();
        for _ in 0..5 {
            let qp = listener.accept().await.unwrap();
            let trace = trace.clone();
            serving.push(tokio::task::spawn_local(async move {
                while let Some(Event::Message(bytes)) = qp.next_event().await {
                    trace.borrow_mut().push((bytes[0], bytes[1], start.elapsed()));
                }
            }));
        }
        for task in serving {
            task.await.unwrap();
        }
        trace.take()
    })
}

#[test]
fn the_same_seed_gives_the_same_run_and_others_reorder_across_peers() {
    let first = trace(7);
    assert_eq!(first, trace(7));
    assert_eq!(first.len(), 100);
    for client in 0..5 {
        let numbers: Vec<u8> = first
            .iter()
            .filter(|(from, ..)| *from == client)
            .map(|(_, number, _)| *number)
            .collect();
        assert_eq!(numbers, (0..20).collect::<Vec<u8>>(), "in order from one peer");
    }
    let order = |trace: &[(u8, u8, Duration)]| {
        trace
            .iter()
            .map(|(from, number, _)| (*from, *number))
            .collect::<Vec<_>>()
    };
    assert_ne!(order(&first), order(&trace(8)));
}

#[test]
fn no_real_time_passes() {
    let network = Network::new(3);
    network.set_delay(Duration::from_secs(1)..=Duration::from_secs(2));
    let real = std::time::Instant::now();
    simulate(&network, async {
        let pair = simulated_pair(&network).await;
        let start = Instant::now();
        for _ in 0..100 {
            pair.client.execute(&mut [Verb::Send { bytes: b"slow" }]).await.unwrap();
        }
        assert!(start.elapsed() >= Duration::from_secs(200));
    });
    assert!(real.elapsed() < Duration::from_secs(20));
}

#[test]
fn what_is_sent_into_a_partition_arrives_when_it_heals() {
    let network = Network::new(4);
    simulate(&network, async {
        let pair = simulated_pair(&network).await;
        let (buffer, key) = pair.buffer(64, Access::ALL);
        network.partition("client-1", "node-1");
        let qp = pair.client.clone();
        let writing = tokio::task::spawn_local(async move {
            qp.execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: b"patience",
            }])
            .await
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!writing.is_finished());
        assert_eq!(bytes_of(&buffer, 0, 8), [0; 8]);
        network.heal("node-1", "client-1");
        writing.await.unwrap().unwrap();
        assert_eq!(bytes_of(&buffer, 0, 8), b"patience");
    });
}

#[test]
fn messages_are_delivered_when_the_host_that_came_first_has_ended() {
    let network = Network::new(5);
    simulate(&network, async {
        network.deliver_here();
        let first = tokio::task::LocalSet::new();
        let listens = async {
            let (me, regions) = (identity(Role::Node(7)), MemoryRegions::new());
            Listener::bind(&"sim://first".parse().unwrap(), &me, &regions)
                .await
                .map(drop)
        };
        first.run_until(listens).await.unwrap();
        let pair = simulated_pair(&network).await;
        drop(first);
        let mut batch = [Verb::Send { bytes: b"still here" }];
        let sending = pair.client.execute(&mut batch);
        tokio::time::timeout(TIMEOUT, sending).await.unwrap().unwrap();
    });
}

#[test]
fn one_way_a_write_takes_effect_without_anybody_knowing() {
    let network = Network::new(5);
    simulate(&network, async {
        let pair = simulated_pair(&network).await;
        let (buffer, key) = pair.buffer(64, Access::ALL);
        network.partition_one_way("node-1", "client-1");
        let error = pair
            .client
            .execute(&mut [Verb::Write {
                to: at(key, 0),
                bytes: b"blindly.",
            }])
            .await;
        assert!(matches!(error, Err(FabricError::Disconnected { .. })), "{error:?}");
        assert_eq!(bytes_of(&buffer, 0, 8), b"blindly.");
        assert_eq!(pair.events.next().await, None, "the server's end is lost as well");
    });
}

#[test]
fn a_long_partition_loses_connections_and_new_ones_wait_for_the_end_of_it() {
    let network = Network::new(6);
    simulate(&network, async {
        let pair = simulated_pair(&network).await;
        network.partition("client-1", "node-1");
        let start = Instant::now();
        assert_eq!(
            pair.client.next_event().await,
            None,
            "lost without anybody having sent anything"
        );
        assert!(start.elapsed() >= Duration::from_secs(15));
        let second = Rc::new(RefCell::new(None::<QueuePair>));
        let regions = MemoryRegions::new();
        let mut listener = Listener::bind(&"sim://node-2".parse().unwrap(), &identity(Role::Node(2)), &regions)
            .await
            .unwrap();
        network.partition("client-1", "node-2");
        let (to, ours) = (second.clone(), pair.client_regions.clone());
        let connecting = tokio::task::spawn_local(async move {
            let qp = connect(
                &"sim://node-2".parse().unwrap(),
                &identity(Role::Client),
                &ours,
                TIMEOUT,
            )
            .await
            .unwrap();
            *to.borrow_mut() = Some(qp);
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(second.borrow().is_none());
        network.heal_all();
        let accepted = listener.accept().await.unwrap();
        connecting.await.unwrap();
        let events = Events::drive(&accepted);
        let qp = second.borrow().clone().unwrap();
        qp.execute(&mut [Verb::Send { bytes: b"again" }]).await.unwrap();
        assert_eq!(events.next().await, Some(Event::Message(b"again".to_vec())));
    });
}

#[test]
fn a_host_cut_off_loses_all_and_can_come_back() {
    for seed in 0..20 {
        println!("seed {seed}");
        let network = Network::new(seed);
        simulate(&network, async {
            let pair = simulated_pair(&network).await;
            for number in 0..10 {
                pair.client
                    .execute_unsignaled(&mut [Verb::Send { bytes: &[number] }])
                    .await
                    .unwrap();
            }
            network.disconnect("node-1");
            assert!(pair.client.is_closed() && pair.server.is_closed());
            // An unbroken beginning of what was under way has arrived.
            let mut expected = 0;
            while let Some(event) = pair.events.next().await {
                assert_eq!(event, Event::Message(vec![expected]));
                expected += 1;
            }
            let regions = pair.client_regions.clone();
            let node = "sim://node-1".parse().unwrap();
            let error = connect(&node, &identity(Role::Client), &regions, TIMEOUT)
                .await
                .unwrap_err();
            assert!(matches!(error, FabricError::Connect { .. }), "{error}");
            network.reconnect("node-1");
            let server_regions = MemoryRegions::new();
            let mut listener = Listener::bind(&node, &identity(Role::Node(1)), &server_regions)
                .await
                .unwrap();
            let me = identity(Role::Client);
            let (client, server) = tokio::join!(connect(&node, &me, &regions, TIMEOUT), listener.accept());
            assert!(!client.unwrap().is_closed() && !server.unwrap().is_closed());
        });
    }
}

#[test]
fn a_silent_peer_does_not_hang_an_operation_for_ever() {
    let network = Network::new(9);
    network.set_delay_between(
        "node-1",
        "client-1",
        Duration::from_secs(3600)..=Duration::from_secs(3600),
    );
    simulate(&network, async {
        network.set_delay_between("node-1", "client-1", Duration::ZERO..=Duration::ZERO);
        let pair = simulated_pair(&network).await;
        network.set_delay_between(
            "node-1",
            "client-1",
            Duration::from_secs(3600)..=Duration::from_secs(3600),
        );
        let start = Instant::now();
        let error = pair
            .client
            .execute(&mut [Verb::Send { bytes: b"anybody?" }])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("nothing heard"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
    });
}
