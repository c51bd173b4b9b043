//! The cluster map: what voters promise, and who goes by which.

use super::*;

#[test]
fn a_voter_that_does_not_keep_what_it_promises() {
    caught(Planted::VoterForgets, a_voter_loses_power);
}

#[test]
fn a_forced_map_that_others_may_have_overtaken() {
    caught(Planted::ForcedMapNotAbove, the_voter_of_two_has_gone_on_alone);
}

/// Of two nodes the one that votes has changed the map since the other one has heard of it, and is removed by force.
fn the_voter_of_two_has_gone_on_alone() {
    let two = ClusterOptions {
        nodes: 2,
        segment_shift: Some(18),
        ..replicated(40)
    };
    run(two, async |cluster| {
        let c = Caller::new(cluster, "client");
        cluster.mirrored().await;
        cluster.network().partition("node-0", "node-1");
        cluster.sleep(Duration::from_secs(3)).await;
        let links = cluster.node(0).new_links();
        for _ in 0..10 {
            let changed = cluster.node(0).change_map(&links, |map| Some(map.clone())).await;
            assert!(changed.unwrap().epoch > cluster.node(1).map().epoch);
        }
        drop(links);
        cluster.crash(0).await;
        cluster.network().heal_all();
        for _ in 0..20 {
            let remove = ask::RemoveNode {
                node: NodeId(0),
                force: true,
            };
            if c.ask_node(1, remove).await.unwrap().is_none() {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        c.create(ROOT, "since").await.unwrap();
        assert_eq!(cluster.restart(0).await, Err(FsError::Removed { node: 0 }));
    });
}

/// A voter has promised to accept nothing of a lower ballot any more, and its machine loses power.
fn a_voter_loses_power() {
    run(options(11), async |cluster| {
        // each has asked for the map after its start
        cluster.sleep(Duration::from_secs(10)).await;
        let links = [0, 2].map(|node| cluster.node(node).new_links());
        let promise = |round, by| {
            let by = NodeId(by);
            ask::Register(Box::new(VoterAsk::Promise(Ballot { round, by })))
        };
        let promised = links[0].call_node(NodeId(1), Cred::Kernel, promise(1000, 0)).await;
        assert!(
            matches!(promised.as_deref(), Ok(VoterAnswer::Promised(..))),
            "{promised:?}"
        );
        cluster.power_cut(1, 3).await;
        cluster.restart(1).await.unwrap();
        let late = links[1].call_node(NodeId(1), Cred::Kernel, promise(999, 2)).await;
        assert!(matches!(late.as_deref(), Ok(VoterAnswer::Refused(..))), "{late:?}");
    });
}
