//! Advisory locks and open files that outlive the node which knew of them.

use super::*;

#[test]
fn locks_given_before_others_have_claimed_theirs() {
    caught(Planted::LockGraceForgotten, a_lock_moves_with_its_region);
}

#[test]
fn locks_claimed_that_others_may_have_had() {
    caught(Planted::LateLockClaimed, a_lock_is_claimed_too_late);
}

#[test]
fn an_open_file_that_goes_before_its_holders_have_come() {
    caught(Planted::ClaimsForgotten, a_file_is_unlinked_when_its_node_has_died);
}

/// A file is open when its node dies, and loses its name before who has it open could say so to the node's successor.
fn a_file_is_unlinked_when_its_node_has_died() {
    run(replicated(7), async |cluster| {
        cluster.mirrored().await;
        let c = Caller::new(cluster, "client");
        let dir = c.directory_at(cluster, 1, "dir").await;
        let (name, file) = c.file_at(cluster, dir, 0, "f").await;
        c.write(file, 0, b"open").await.unwrap();
        c.open(file).await.unwrap();
        cluster.crash(0).await;
        c.unlink(dir, &name).await.unwrap();
        cluster.sleep(Duration::from_secs(1)).await;
        assert_eq!(c.open(file).await.err(), None, "it is opened again");
        assert_eq!(c.read(file).await.unwrap(), b"open");
    });
}

/// An exclusive lock of all of a file.
pub(super) fn lock(inode: InodeRef) -> ask::Lock {
    ask::Lock {
        inode,
        lock: LockAsk {
            owner: 1,
            kind: LockKind::Range,
            mode: LockMode::Exclusive,
            range: LockRange::ALL,
            pid: 1,
        },
        wait: None,
    }
}

/// What is claimed back when that is gone.
pub(super) fn claim(inode: InodeRef, term: LockTerm) -> ask::ClaimLocks {
    ask::ClaimLocks {
        inode,
        owner: 1,
        term,
        ranges: vec![Locked {
            range: LockRange::ALL,
            mode: LockMode::Exclusive,
            pid: 1,
        }],
        whole: None,
    }
}

pub(super) async fn granted(c: &Caller, inode: InodeRef) -> LockTerm {
    match c.ask(inode.ino.region(), lock(inode)).await.expect("a lock") {
        LockAnswer::Granted(term) => term,
        LockAnswer::Queued => panic!("queued, and nobody waits"),
    }
}

/// The primary of a file dies: whoever has locked it claims that back from its successor, and nobody else is given the lock before.
fn a_lock_moves_with_its_region() {
    run(replicated(5), async |cluster| {
        cluster.mirrored().await;
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = file_of_node_0(cluster, &a, b"locked").await;
        let term = granted(&a, file).await;
        cluster.crash(0).await;
        let other = spawn_local({
            let b = b.clone();
            async move { b.ask(file.ino.region(), lock(file)).await }
        });
        cluster.sleep(Duration::from_millis(2400)).await;
        let claimed = loop {
            match a.ask(file.ino.region(), claim(file, term)).await {
                Ok(claimed) => break claimed,
                Err(error) => assert!(matches!(error, FsError::Unreachable { .. }), "{error}"),
            }
        };
        assert!(claimed.is_some_and(|now| now != term));
        assert_eq!(other.await.expect("no panic"), Err(FsError::WouldBlock));
        assert_eq!(
            a.ask(file.ino.region(), claim(file, claimed.unwrap())).await,
            Ok(claimed),
            "it is held"
        );
        assert_eq!(
            b.ask(file.ino.region(), claim(file, claimed.unwrap())).await,
            Ok(None),
            "not by all"
        );
    });
}

/// Who does not come in time has lost his lock once somebody else has had it, though it is free again; nor does what was had under another term
/// than the one before count.
fn a_lock_is_claimed_too_late() {
    run(replicated(6), async |cluster| {
        cluster.mirrored().await;
        let (a, b) = (Caller::new(cluster, "a"), Caller::new(cluster, "b"));
        let file = file_of_node_0(cluster, &a, b"locked").await;
        let region = file.ino.region();
        let term = granted(&a, file).await;
        cluster.crash(0).await;
        granted(&b, file).await;
        let (owner, range) = (1, LockRange::ALL);
        let inode = file;
        b.ask(region, ask::Unlock { inode, owner, range })
            .await
            .expect("unlocked");
        assert_eq!(a.ask(region, claim(file, term)).await, Ok(None));
        assert_eq!(a.ask(region, claim(file, LockTerm(term.0 ^ 2))).await, Ok(None));
        granted(&a, file).await;
    });
}
