//! Finding each other, and refusing each other.

use crate::support::{Events, Provider, TIMEOUT, block_on, identity, place, runtime};
use polvo_fabric::{Address, FabricError, Identity, Listener, MemoryRegions, Role, Verb, connect, sim::Network};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// Runs the body in a runtime that suits the provider.
fn on_each(body: impl AsyncFn(Provider)) {
    for provider in [Provider::Tcp, Provider::Shm, Provider::Sim(1)] {
        println!("provider: {provider:?}");
        let network = Network::new(1);
        let _entered = network.enter();
        let runtime = runtime(matches!(provider, Provider::Sim(_)));
        tokio::task::LocalSet::new().block_on(&runtime, async {
            tokio::time::timeout(Duration::from_secs(60), body(provider))
                .await
                .expect("the test takes too long");
        });
    }
}

#[test]
fn who_does_not_belong_is_refused_and_told_why() {
    on_each(async |provider| {
        let place = place(&provider);
        let regions = MemoryRegions::new();
        let mut listener = Listener::bind(&place.address, &identity(Role::Node(1)), &regions)
            .await
            .unwrap();
        let addr = listener.local_addr();
        let accepting = tokio::task::spawn_local(async move { listener.accept().await.map(|qp| qp.peer()) });
        let ours = MemoryRegions::new();
        let wrong_secret = Identity {
            secret: b"guess"[..].into(),
            ..identity(Role::Client)
        };
        let wrong_cluster = Identity {
            cluster: [8; 16],
            ..identity(Role::Client)
        };
        for (me, reason) in [(wrong_secret, "secrets differ"), (wrong_cluster, "another cluster")] {
            match connect(&addr, &me, &ours, TIMEOUT).await {
                Err(FabricError::Refused { peer, why }) => {
                    assert_eq!(peer, addr.to_string());
                    assert!(why.contains(reason), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
        // The listener has let none of them in, and goes on.
        let qp = connect(&addr, &identity(Role::Node(9)), &ours, TIMEOUT).await.unwrap();
        assert_eq!(qp.peer(), Role::Node(1));
        assert_eq!(accepting.await.unwrap().unwrap(), Role::Node(9));
    });
}

#[test]
fn nobody_there_is_an_error_that_names_the_address() {
    on_each(async |provider| {
        let place = place(&provider);
        let regions = MemoryRegions::new();
        let address = match place.address.clone() {
            Address::Tcp(_) => Address::Tcp("127.0.0.1:1".into()),
            other => other,
        };
        let error = connect(&address, &identity(Role::Client), &regions, TIMEOUT)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, FabricError::Connect { peer, .. } if *peer == address.to_string()),
            "{error}"
        );
    });
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    on_each(async |provider| {
        let place = place(&provider);
        let regions = MemoryRegions::new();
        let me = identity(Role::Node(1));
        let first = Listener::bind(&place.address, &me, &regions).await.unwrap();
        let addr = first.local_addr();
        let Err(error) = Listener::bind(&addr, &me, &regions).await else {
            panic!("bound twice")
        };
        let expected = FabricError::Address {
            addr: addr.to_string(),
            why: "already in use".into(),
        };
        assert_eq!(error, expected);
        drop(first);
        Listener::bind(&addr, &me, &regions).await.unwrap();
    });
}

#[test]
fn a_peer_that_never_answers_is_given_up_in_time() {
    block_on(async {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = Address::Tcp(silent.local_addr().unwrap().to_string());
        let regions = MemoryRegions::new();
        let error = connect(&addr, &identity(Role::Client), &regions, Duration::from_millis(50))
            .await
            .unwrap_err();
        assert_eq!(
            error,
            FabricError::TimedOut {
                peer: addr.to_string(),
                ms: 50
            }
        );
    });
}

#[test]
fn strangers_at_the_port_disturb_nobody() {
    block_on(async {
        let regions = MemoryRegions::new();
        let address = Address::Tcp("127.0.0.1:0".into());
        let mut listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
            .await
            .unwrap();
        let addr = listener.local_addr();
        let Address::Tcp(port) = &addr else { unreachable!() };
        let mut strangers = Vec::new();
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 200], b"", b"PolvoFab"] {
            for _ in 0..10 {
                let mut stranger = std::net::TcpStream::connect(port).unwrap();
                stranger.write_all(bytes).unwrap();
                strangers.push(stranger);
            }
        }
        let me = identity(Role::Client);
        let (client, server) = tokio::join!(connect(&addr, &me, &regions, TIMEOUT), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let events = Events::drive(&server);
        client.execute(&mut [Verb::Send { bytes: b"hello" }]).await.unwrap();
        assert!(events.next().await.is_some());
    });
}

/// Far more than there are places for handshakes, all from one address or process; they say nothing and stay.
#[test]
fn a_crowd_of_silent_strangers_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    for address in [
        Address::Tcp("127.0.0.1:0".into()),
        Address::Shm(dir.path().join("socket")),
    ] {
        block_on(async {
            let regions = MemoryRegions::new();
            let mut listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
                .await
                .unwrap();
            let addr = listener.local_addr();
            let (done, mut all_here) = tokio::sync::oneshot::channel();
            let crowd = std::thread::spawn({
                let addr = addr.clone();
                move || {
                    let stranger = |_| -> Box<dyn Send> {
                        match &addr {
                            Address::Tcp(port) => Box::new(std::net::TcpStream::connect(port).unwrap()),
                            Address::Shm(path) => Box::new(UnixStream::connect(path).unwrap()),
                            Address::Sim(_) => unreachable!("these are not simulated"),
                        }
                    };
                    let _ = done.send((0..300).map(stranger).collect::<Vec<_>>());
                }
            });
            let strangers = tokio::select! {
                _ = listener.accept() => panic!("nobody has proved anything"),
                strangers = &mut all_here => strangers.unwrap(),
            };
            let me = identity(Role::Client);
            let limit = Duration::from_secs(2);
            let (client, server) = tokio::join!(connect(&addr, &me, &regions, limit), listener.accept());
            assert!(client.is_ok() && server.is_ok(), "{addr}: {client:?}");
            drop(strangers);
            crowd.join().unwrap();
        });
    }
}

/// A listener that was busy finds a crowd in its queue, behind somebody who has come to stay.
#[test]
fn a_crowd_in_the_queue_does_not_put_out_whom_it_came_behind() {
    let dir = tempfile::tempdir().unwrap();
    for address in [
        Address::Tcp("127.0.0.1:0".into()),
        Address::Shm(dir.path().join("socket")),
    ] {
        block_on(async {
            let regions = MemoryRegions::new();
            let mut listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
                .await
                .unwrap();
            let addr = listener.local_addr();
            let honest = tokio::task::spawn_local({
                let (addr, regions) = (addr.clone(), regions.clone());
                async move { connect(&addr, &identity(Role::Client), &regions, TIMEOUT).await }
            });
            tokio::task::yield_now().await;
            let _crowd: Vec<Box<dyn Send>> = (0..100)
                .map(|_| -> Box<dyn Send> {
                    match &addr {
                        Address::Tcp(port) => Box::new(std::net::TcpStream::connect(port).unwrap()),
                        Address::Shm(path) => Box::new(UnixStream::connect(path).unwrap()),
                        Address::Sim(_) => unreachable!("these are not simulated"),
                    }
                })
                .collect();
            let (server, client) = tokio::join!(listener.accept(), honest);
            assert!(server.is_ok() && client.unwrap().is_ok(), "{addr}");
        });
    }
}

/// Where the kernel's queue of a socket is full, connecting fails at once (EAGAIN) and does not wait as over tcp.
#[test]
fn a_queue_full_of_strangers_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    block_on(async {
        let regions = MemoryRegions::new();
        let addr = Address::Shm(path.clone());
        let mut listener = Listener::bind(&addr, &identity(Role::Node(1)), &regions).await.unwrap();
        let mut strangers = 0;
        // those that have gone stay in the queue
        while tokio::net::UnixStream::connect(&path).await.is_ok() {
            strangers += 1;
            assert!(strangers < 100_000, "the queue has no end");
        }
        let me = identity(Role::Client);
        let (client, server) = tokio::join!(connect(&addr, &me, &regions, TIMEOUT), listener.accept());
        assert!(client.is_ok() && server.is_ok(), "{client:?}");
    });
}

#[test]
fn a_socket_left_behind_is_replaced_and_ours_is_removed() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "closing a socket leaves its file");
        let regions = MemoryRegions::new();
        let address = Address::Shm(path.clone());
        let listener = Listener::bind(&address, &identity(Role::Node(1)), &regions)
            .await
            .unwrap();
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        let Err(error) = Listener::bind(&address, &identity(Role::Node(1)), &regions).await else {
            panic!("bound")
        };
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let missing = Address::Shm(dir.path().join("no/such/dir/node.sock"));
        assert!(
            Listener::bind(&missing, &identity(Role::Node(1)), &regions)
                .await
                .is_err()
        );
        let long = Address::Shm(dir.path().join("x".repeat(120)));
        let Err(error) = Listener::bind(&long, &identity(Role::Node(1)), &regions).await else {
            panic!("bound")
        };
        assert!(error.to_string().contains("107"), "{error}");
    });
}

#[test]
fn dropping_a_queue_pair_ends_it_for_the_peer() {
    on_each(async |provider| {
        let pair = crate::support::pair(&provider).await;
        drop(pair.client);
        assert_eq!(pair.events.next().await, None);
    });
}

#[test]
fn who_uses_a_queue_pair_for_nothing_hears_that_it_is_lost() {
    on_each(async |provider| {
        let pair = crate::support::pair(&provider).await;
        // what has come meanwhile is still there for whoever is to take it
        pair.server
            .execute_unsignaled(&mut [Verb::Send { bytes: b"first" }])
            .await
            .unwrap();
        let (server, client) = (pair.server.clone(), pair.client.clone());
        let waiting = tokio::task::spawn_local(async move { client.closed().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        server.close();
        waiting.await.unwrap();
        assert!(pair.client.next_event().await.is_some());
        assert!(pair.client.next_event().await.is_none());
    });
}
