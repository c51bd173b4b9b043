//! What a client knows by tokens, and when it gives them back.

use crate::common::{ROOT, directory, external, file, inode, internal, with_cluster, with_options};
use polvo_client::{LocalClient, OpenFile};
use polvo_cluster::Timeouts;
use polvo_format::NodeId;
use polvo_node::sim::ClusterOptions;
use polvo_proto::{FsError, RenameMode, XattrMode};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::Instant;

fn with_tokens(client: Rc<LocalClient>) -> Rc<LocalClient> {
    client.client().use_tokens(None);
    spawn_local(client.client().local().watch_tokens());
    client
}

/// The node around a client knows its session before the first connection to it is made, with the renewal of the lease on what
/// another node has made there: the client does not take its tokens for lost, or a change would wait until their lease is over.
#[test]
fn who_is_colocated_keeps_its_tokens_when_it_also_connects() {
    with_cluster(97, async |cluster| {
        let renewal = Instant::now() + cluster.timeouts().renew_every();
        let here = with_tokens(internal(cluster, 1));
        let mut opened = Vec::new();
        for i in 0..40 {
            let dir = here
                .create(ROOT, format!("d{i}").as_bytes(), directory())
                .await
                .unwrap();
            let (_, open) = here.create_open(inode(&dir), b"f", file()).await.unwrap();
            opened.push(open);
        }
        let map = here.client().map();
        let lies_here = |open: &&Arc<OpenFile>| map.primary(open.inode().ino.region()) == Some(NodeId(1));
        let known = opened.iter().find(lies_here).expect("one of forty lies here").inode();
        tokio::time::sleep_until(renewal - Duration::from_millis(200)).await;
        for _ in 0..3 {
            here.get_attr(known).await.unwrap();
            cluster.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(here.client().counters().tokens, 1);
        // until what was asked of the node before has been answered
        tokio::time::sleep_until(renewal + Timeouts::WATCH + Duration::from_millis(100)).await;
        let other = external(cluster, "other");
        let open = other.open(known).await.unwrap();
        let before = Instant::now();
        other.append(&open, b"more").await.unwrap();
        assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    });
}

/// A node that may promise nothing just now, since a mirror of another region does not answer, is not asked at every use.
#[test]
fn a_node_that_gives_no_tokens_is_asked_now_and_then() {
    let options = ClusterOptions {
        seed: 98,
        replicas: 2,
        ..ClusterOptions::default()
    };
    with_options(options, async |cluster| {
        cluster.mirrored().await;
        let client = with_tokens(external(cluster, "client"));
        let known = inode(&client.create(ROOT, b"f", file()).await.unwrap());
        client.get_attr(known).await.expect("attributes");
        // the region's mirror answers, and that of the primary's other region does not
        let map = cluster.newest_map().expect("there is one");
        let info = map.region(known.ino.region()).expect("it is in the map");
        let primary = info.primary().expect("it is served");
        let other = (0..3)
            .find(|node| info.role(NodeId(*node)).is_none())
            .expect("two of three");
        cluster
            .network()
            .partition(&format!("node-{}", primary.0), &format!("node-{other}"));
        cluster.sleep(Duration::from_millis(1020)).await;
        let before = client.client().counters();
        let mut looks = 0u64;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            client.get_attr(known).await.expect("attributes");
            looks += 1;
            cluster.sleep(Duration::from_millis(1)).await;
        }
        let after = client.client().counters();
        let asked = after.rpcs - before.rpcs;
        assert!(looks > 50 && asked < 20, "{looks} looks, {asked} requests");
        cluster.network().heal_all();
        cluster.sleep(Duration::from_secs(3)).await;
    });
}

/// Requests and batches of one-sided reads that a client has made.
fn round_trips(client: &LocalClient) -> u64 {
    let counters = client.client().counters();
    counters.rpcs - counters.renewals + counters.one_sided_batches
}

/// Which inode a removal or a rename was about is known when it has been answered: of all others a client knows what it knew before.
#[test]
fn what_own_removals_and_renames_were_not_about_stays_known() {
    with_cluster(98, async |cluster| {
        let client = with_tokens(external(cluster, "client"));
        let dir = inode(&client.create(ROOT, b"d", directory()).await.unwrap());
        let names: Vec<String> = (0..30).map(|n| format!("f{n}")).collect();
        let mut all = vec![dir];
        for name in &names {
            all.push(inode(&client.create(dir, name.as_bytes(), file()).await.unwrap()));
        }
        client.take_tokens(&all).await;
        let looks = async || {
            let before = round_trips(&client);
            for name in &names {
                client.lookup(dir, name.as_bytes()).await.unwrap();
            }
            round_trips(&client) - before
        };
        looks().await;
        assert_eq!(looks().await, 0, "all is known");
        let linked = all[1];
        client.link(linked, ROOT, b"another").await.unwrap();
        assert_eq!(client.get_attr(linked).await.unwrap().nlink, 2);
        for round in 0..3 {
            client.create(dir, b"lock", file()).await.unwrap();
            match round {
                0 => client.unlink(dir, b"lock").await.unwrap(),
                1 => client
                    .rename(dir, b"lock", ROOT, b"another", RenameMode::Replace)
                    .await
                    .unwrap(),
                _ => client
                    .rename(dir, b"lock", dir, b"f29", RenameMode::Replace)
                    .await
                    .unwrap(),
            }
            // the directory and what was renamed are looked at again
            let took = looks().await;
            assert!(took <= 8, "{took} round trips in round {round}");
            let nlink = client.get_attr(linked).await.unwrap().nlink;
            assert_eq!(nlink, if round == 0 { 2 } else { 1 }, "in round {round}");
        }
        assert_eq!(looks().await, 1, "there is no token of the new inode");
    });
}

#[test]
fn a_directory_is_listed_by_its_token() {
    with_cluster(99, async |cluster| {
        let client = with_tokens(external(cluster, "client"));
        let dir = inode(&client.create(ROOT, b"d", directory()).await.unwrap());
        for name in ["a", "b", "c"] {
            client.create(dir, name.as_bytes(), file()).await.unwrap();
        }
        let list = async || {
            let before = round_trips(&client);
            let page = client.read_dir(dir, 0, 100).await.unwrap();
            let names = page
                .entries
                .into_iter()
                .map(|entry| String::from_utf8(entry.name).unwrap());
            (names.collect::<Vec<_>>(), round_trips(&client) - before)
        };
        client.take_tokens(&[dir]).await;
        assert_eq!(list().await.0, ["a", "b", "c"]);
        assert_eq!(list().await, (vec!["a".into(), "b".into(), "c".into()], 0));
        let other = external(cluster, "other");
        other.unlink(dir, b"b").await.unwrap();
        assert_eq!(list().await.0, ["a", "c"]);
        client.take_tokens(&[dir]).await;
        list().await;
        client.create(dir, b"d", file()).await.unwrap();
        assert_eq!(list().await.0, ["a", "c", "d"]);
    });
}

/// Extended attributes that are not there are looked for all the time (`ls -l`): by a token it is known that there are none.
#[test]
fn extended_attributes_that_are_not_there_are_known_not_to_be() {
    with_cluster(100, async |cluster| {
        let client = with_tokens(external(cluster, "client"));
        let other = external(cluster, "other");
        let made = inode(&client.create(ROOT, b"f", file()).await.unwrap());
        let look_at = async |inode| {
            let before = round_trips(&client);
            let value = client.get_xattr(inode, b"user.a").await;
            let names = client.list_xattr(inode).await.unwrap();
            assert_eq!(value.is_ok(), names.contains(&b"user.a".to_vec()));
            assert!(matches!(value, Ok(_) | Err(FsError::NoAttribute)), "{value:?}");
            (value.ok(), round_trips(&client) - before)
        };
        let look = async || look_at(made).await;
        assert_eq!(look().await.0, None);
        client.take_tokens(&[made]).await;
        assert_eq!(look().await, (None, 0));
        client.get_attr(made).await.unwrap();
        assert_eq!(look().await, (None, 0), "a look does not find out, and need not");
        assert_eq!(client.get_xattr(made, b"polvo.regions").await.unwrap(), b"replicas=1");
        assert!(
            client
                .get_xattr(made, b"")
                .await
                .is_err_and(|error| error != FsError::NoAttribute)
        );
        // of our own, and of others
        client.set_xattr(made, b"user.a", b"1", XattrMode::Any).await.unwrap();
        assert_eq!(look().await.0, Some(b"1".to_vec()));
        client.get_attr(made).await.unwrap();
        assert_eq!(
            look().await,
            (Some(b"1".to_vec()), 2),
            "the token is there still, and says nothing"
        );
        client.remove_xattr(made, b"user.a").await.unwrap();
        assert_eq!(look().await.0, None);
        other.set_xattr(made, b"user.a", b"2", XattrMode::Any).await.unwrap();
        assert_eq!(look().await.0, Some(b"2".to_vec()));
        let has_some = inode(&client.create(ROOT, b"g", file()).await.unwrap());
        other
            .set_xattr(has_some, b"user.a", b"3", XattrMode::Any)
            .await
            .unwrap();
        client.take_tokens(&[has_some]).await;
        assert_eq!(look_at(has_some).await, (Some(b"3".to_vec()), 2));
    });
}
