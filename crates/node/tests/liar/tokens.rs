//! Tokens that are taken and not given back, by numbers and terms that never were; of what is not there.

use super::scene::*;
use crate::common::*;
use polvo_format::{Generation, Ino, RegionId};
use polvo_node::sim::{ClusterOptions, run};
use polvo_proto::*;
use tokio::task::spawn_local;
use tokio::time::Instant;

async fn take(c: &Caller, node: u16, inode: InodeRef) -> reply::Taken {
    let taken = c.ask_node(node, ask::TakeTokens { inodes: vec![inode] }).await;
    taken.expect("who takes tokens hears of each")
}

#[test]
fn who_does_not_answer_is_not_waited_for_longer_than_his_lease() {
    run(ClusterOptions::default(), async |cluster| {
        let s = Scene::new(cluster).await;
        let (timeouts, node) = (cluster.timeouts(), s.node);
        let taken = take(&s.liar, node, s.file).await;
        assert!(taken.tokens[0].is_some());
        // it is there, and renews its lease all the time; it only does not give anything back
        let liar = s.liar.clone();
        let watching = spawn_local(async move {
            loop {
                let (term, answered) = (taken.term, vec![0, 1 << 40, u64::MAX]);
                let end = false;
                drop(liar.ask_node(node, ask::Watch { term, answered, end }).await);
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
        let began = Instant::now();
        s.honest
            .write(s.file, 0, b"changed")
            .await
            .expect("it waits, and is done");
        let waited = began.elapsed();
        assert!(
            waited >= timeouts.token / 2,
            "{waited:?}: whoever holds a token was asked"
        );
        assert!(waited <= timeouts.token * 2, "{waited:?}");
        watching.abort();
    });
}

#[test]
fn terms_that_never_were_and_tokens_of_what_is_not_there() {
    run(ClusterOptions::default(), async |cluster| {
        let s = Scene::new(cluster).await;
        let before = s.world().await;
        let strange = [
            InodeRef {
                generation: Generation(s.file.generation.0 + 1),
                ..s.file
            },
            InodeRef {
                ino: Ino::new(s.region, 1 << 39),
                ..s.file
            },
            InodeRef {
                ino: Ino::new(RegionId(999), 1),
                ..s.file
            },
            InodeRef { ino: Ino(0), ..s.file },
        ];
        let taken = s.liar.ask_node(
            s.node,
            ask::TakeTokens {
                inodes: strange.to_vec(),
            },
        );
        assert_eq!(taken.await.expect("each is told").tokens, vec![None; strange.len()]);
        for (term, end) in [(0, true), (u64::MAX, true), (u64::MAX, false)] {
            let watch = ask::Watch {
                term,
                answered: vec![u64::MAX; 3],
                end,
            };
            let asked = s.liar.ask_node(s.node, watch).await.expect("it is told the term");
            assert!(asked.asked.is_empty() && asked.term != term);
        }
        let held = take(&s.honest, s.node, s.file).await;
        let number = held.tokens[0].as_ref().expect("given").number;
        let watch = ask::Watch {
            term: held.term,
            answered: vec![number],
            end: false,
        };
        drop(s.liar.ask_node(s.node, watch).await); // somebody else's number
        let twice = take(&s.honest, s.node, s.file).await.tokens[0].expect("again");
        assert!(twice.number > number, "each has its own");
        assert_eq!(before, s.world().await);
        let too_many = ask::TakeTokens {
            inodes: vec![s.file; TOKENS_PAGE + 1],
        };
        let refused = s.liar.ask_node(s.node, too_many).await;
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
    });
}
