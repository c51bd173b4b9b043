//! What is durable against power loss where a node's pool needs to be synced for it, as in a plain file.

use crate::common::{ROOT, content, directory, external, file, inode, pattern, with_options};
use polvo_client::LocalClient;
use polvo_node::sim::{Cluster, ClusterOptions};
use polvo_pmem::sim::LoseAll;
use polvo_proto::{Durability, FsError, RenameMode, SetAttr};
use std::time::Duration;

/// The pool of the only node lies in a plain file from now on; the node is started anew on it.
async fn moves_to_a_file(cluster: &mut Cluster) {
    cluster.stop(0).await;
    cluster.pmem(0).sim().expect("simulated").needs_sync_from_now(true);
    cluster.restart(0).await.expect("restart");
}

/// Power is lost, and with it all that is not durable.
async fn power_cut(cluster: &mut Cluster) {
    cluster.crash(0).await;
    let medium = cluster.pmem(0).clone();
    medium.sim().expect("simulated").power_cut_with(&mut LoseAll);
    cluster.restart(0).await.expect("restart");
}

fn one_node(seed: u64, test: impl AsyncFnOnce(&mut Cluster)) {
    let options = ClusterOptions {
        nodes: 1,
        seed,
        ..ClusterOptions::default()
    };
    with_options(options, test);
}

async fn is_there(client: &LocalClient, name: &[u8]) -> bool {
    match client.lookup(ROOT, name).await {
        Ok(_) => true,
        Err(FsError::NotFound) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Who has found that no node has to be asked for it, and goes on without, loses nothing when one comes that has to be.
#[test]
fn what_was_acknowledged_to_who_does_not_sync_outlives_a_power_cut() {
    one_node(401, async |cluster| {
        let client = external(cluster, "client");
        let (_, open) = client.create_open(ROOT, b"f", file()).await.unwrap();
        assert!(client.needs_no_sync().await);
        moves_to_a_file(cluster).await;
        let bytes = pattern(1, 30_000);
        let mode = Some(0o611);
        let set = SetAttr {
            mode,
            ..SetAttr::default()
        };
        client.write(&open, 0, &bytes).await.unwrap();
        power_cut(cluster).await;
        assert!(content(&client, &open).await == bytes);
        client.append(&open, b"more").await.unwrap();
        power_cut(cluster).await;
        assert_eq!(content(&client, &open).await.len(), bytes.len() + 4);
        client.set_attr(open.inode(), set).await.unwrap();
        power_cut(cluster).await;
        assert_eq!(client.get_attr(open.inode()).await.unwrap().mode, 0o611);
        let dir = inode(&client.create(ROOT, b"d", directory()).await.unwrap());
        power_cut(cluster).await;
        client.rename(ROOT, b"f", dir, b"g", RenameMode::Replace).await.unwrap();
        power_cut(cluster).await;
        assert!(!is_there(&client, b"f").await && client.lookup(dir, b"g").await.is_ok());
        client.unlink(dir, b"g").await.unwrap();
        power_cut(cluster).await;
        assert_eq!(client.lookup(dir, b"g").await.map(drop), Err(FsError::NotFound));
        assert!(!client.needs_no_sync().await, "this node has to be asked");
    });
}

/// Who is asked for it syncs, and until then nothing is durable: the medium of these tests loses what it may lose.
#[test]
fn who_syncs_has_to() {
    one_node(402, async |cluster| {
        let client = external(cluster, "client");
        moves_to_a_file(cluster).await;
        assert!(!client.needs_no_sync().await);
        client.create(ROOT, b"synced", file()).await.unwrap();
        client.sync(None).await.unwrap();
        client.create(ROOT, b"lost", file()).await.unwrap();
        power_cut(cluster).await;
        assert!(is_there(&client, b"synced").await);
        assert!(!is_there(&client, b"lost").await);
    });
}

/// A node has done what it was asked, dies before it is durable, and is asked again: it is durable when that is answered.
#[test]
fn what_was_done_before_the_node_died_is_durable_when_it_is_answered() {
    one_node(403, async |cluster| {
        let (client, other) = (external(cluster, "client"), external(cluster, "other"));
        assert!(client.needs_no_sync().await);
        moves_to_a_file(cluster).await;
        let delay = Duration::from_millis(1);
        cluster.network().set_delay_between("client", "node-0", delay..=delay);
        let mut before = 0;
        for step in 0..20 {
            let name = format!("f{step}").into_bytes();
            let asking = {
                let (client, name) = (client.clone(), name.clone());
                tokio::task::spawn_local(async move { client.create(ROOT, &name, file()).await })
            };
            cluster.sleep(delay * step / 5).await;
            cluster.network().disconnect("client");
            cluster.crash(0).await;
            cluster.restart(0).await.expect("restart");
            before += u32::from(is_there(&other, &name).await);
            cluster.network().reconnect("client");
            asking.await.unwrap().unwrap();
            power_cut(cluster).await;
            assert!(is_there(&client, &name).await, "step {step}");
        }
        assert!(before > 0 && before < 20, "{before} of 20 were done before");
    });
}

/// Where a region is ahead of its mirror, what was synced is there after its node has died; who has it open hears once that something
/// which was not may be lost.
#[test]
fn what_was_synced_outlives_a_node_and_what_is_lost_is_said_once() {
    let options = ClusterOptions {
        seed: 403,
        regions_per_node: 1,
        replicas: 2,
        durability: Durability::Async,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let client = external(cluster, "client");
        assert!(!client.needs_no_sync().await);
        let mut files = Vec::new();
        for n in 0..100 {
            let name = format!("f{n}");
            let (_, open) = client.create_open(ROOT, name.as_bytes(), file()).await.unwrap();
            match cluster
                .map()
                .primary(open.inode().ino.region())
                .is_some_and(|node| node.0 == 0)
            {
                true => files.push(open),
                false => drop(open),
            }
        }
        assert!(files.len() > 1, "two lie at node 0");
        let (ahead, kept) = (&files[0], &files[1]);
        for open in [ahead, kept] {
            client.write(open, 0, b"before").await.unwrap();
            client.sync(Some(open)).await.unwrap();
        }
        client.sync(None).await.unwrap();
        cluster.network().partition("node-0", "node-1");
        client.write(ahead, 0, b"after!").await.unwrap();
        cluster.crash(0).await;
        cluster.network().heal_all();
        assert_eq!(content(&client, ahead).await, b"before");
        let lost = client.sync(Some(ahead)).await;
        assert!(
            matches!(&lost, Err(FsError::Io(why)) if why.contains("may be lost")),
            "{lost:?}"
        );
        assert_eq!(client.sync(Some(ahead)).await, Ok(()), "it is said once");
        client.write(kept, 0, b"later!").await.unwrap();
        assert_eq!(client.sync(Some(kept)).await, Ok(()), "nothing of it was lost");
        assert_eq!(content(&client, kept).await, b"later!");
        cluster.restart(0).await.expect("restart");
    });
}
