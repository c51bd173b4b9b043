//! First contact: from addresses to a cluster map.

use crate::Timeouts;
use polvo_fabric::{Address, Identity, MemoryRegions, connect};
use polvo_format::{Epoch, SessionId};
use polvo_proto::{Ask, Call, ClusterMap, Cred, FsError, PROTOCOL_VERSION, Request, ask, decode_answer};
use polvo_rpc::{RpcClient, RpcError};

/// Asks the first of `addresses` that answers for the cluster map. Waits for each at most as long as `timeouts` says;
/// the error is that of the last one tried.
pub async fn fetch_map(
    addresses: &[Address],
    me: &Identity,
    session: SessionId,
    name: &str,
    timeouts: &Timeouts,
) -> Result<ClusterMap, FsError> {
    let mut failure = FsError::Invalid("no address of a node is known".into());
    for address in addresses {
        match ask(address, me, session, name, timeouts).await {
            Ok(map) => return Ok(map),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn ask(
    address: &Address,
    me: &Identity,
    session: SessionId,
    name: &str,
    timeouts: &Timeouts,
) -> Result<ClusterMap, FsError> {
    let failed = |error: RpcError| FsError::Io(format!("{address} did not answer: {error}"));
    let regions = MemoryRegions::new();
    let pair = connect(address, me, &regions, timeouts.connect)
        .await
        .map_err(|e| failed(e.into()))?;
    let rpc = RpcClient::establish(pair, &regions, timeouts.connect)
        .await
        .map_err(failed)?;
    let attach = ask::Attach {
        version: PROTOCOL_VERSION,
        name: name.to_string(),
        home: None,
        fence: 0,
        syncs: true,
    };
    let mut call = Call {
        again: false,
        session,
        request_id: u64::MAX,
        epoch: Epoch(0),
        cred: Cred::Kernel,
        request: attach.into(),
    };
    let reply = rpc.call(&call.encode(), timeouts.rpc).await.map_err(failed)?;
    // nobody will end this session there if nothing else is done at that node
    call.request = Request::Detach;
    let _best_effort = rpc.call(&call.encode(), timeouts.connect).await;
    rpc.queue_pair().close();
    let reply = decode_answer(&reply).map_err(|e| FsError::Io(e.to_string()))??;
    // which node that is, only the answer would have said
    ask::Attach::answer_of(reply)
        .map(|attached| *attached.map)
        .ok_or_else(|| FsError::Io(format!("{address} did not answer what it was asked")))
}
