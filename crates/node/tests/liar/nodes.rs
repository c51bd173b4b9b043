//! What only nodes say to each other.

use super::scene::*;
use crate::common::*;
use polvo_format::{RegionId, TxnId};
use polvo_proto::*;

#[test]
fn requests_that_are_for_nodes_only() {
    refused(async |cluster, s| {
        let txn = TxnId::new(RegionId(0), 1);
        let on_behalf = s.liar.links.context().session();
        let region = s.region;
        let requests = [
            Request::TxnState { txn },
            Request::RenameLock { txn, release: false },
            Request::RenameLock { txn, release: true },
            Request::Parent { inode: s.dir },
            Request::Collect {
                txn,
                region,
                on_behalf,
                open: true,
                intents: vec![Intent::DropLink { inode: s.file }],
            },
            Request::Prepare {
                txn,
                region,
                on_behalf,
                open: false,
                intents: vec![],
            },
            Request::Conclude {
                txn,
                region,
                commit: true,
            },
            Request::Fence,
            Request::LockWaits,
            Request::ReleaseSegments,
            Request::ShareUsage(Usage::default()),
        ];
        for node in 0..3 {
            for request in &requests {
                let answer = s.liar.ask_node(node, request.clone()).await;
                assert_eq!(answer, Err(FsError::NotPermitted), "{request:?}");
            }
            let user = s.liar.as_user(user(1));
            assert_eq!(user.ask_node(node, Request::Shutdown).await, Err(FsError::NotPermitted));
        }
        assert!((0..3).all(|node| cluster.is_running(node)));
    });
}
