//! Self-identified RPC on the fabric (Octopus 3.3.1), the same over every provider.
//!
//! The server keeps a *message pool* in registered memory: for each caller a few slots for requests. A caller writes its
//! request into a slot with one write-with-immediate; the immediate names the caller and the slot, so the server finds the
//! request without scanning. The reply is one write-with-immediate straight into the slot of the caller's own memory that
//! belongs to the request. Neither write is waited for by a completion: the reply answers for the request, and a lost
//! reply is the connection lost.
//!
//! Every slot counts its messages on both sides, so a stale or repeated message is noticed. A slot whose call was given up
//! is not used again before the late reply has come. Lengths and sequence are checked by both sides; a peer that breaks
//! the rules gets its connection closed.
//!
//! The other two ways of RPC that Octopus compares stand beside the experiments that compare them (`bench/rpc_scheme`).
#![forbid(unsafe_code)]

mod client;
mod error;
mod server;
mod slot;

pub use client::RpcClient;
pub use error::RpcError;
pub use server::serve;
pub use slot::{MAX_REPLY, MAX_REQUEST, SLOTS};
