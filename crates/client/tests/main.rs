//! What a client does in a cluster that runs in one thread, on simulated pools and under a paused clock: one program, since each would
//! have the whole cluster in it.

mod common;

mod access_times;
mod budgets;
mod coherence;
mod concurrent;
mod failure;
mod locks;
mod moves;
mod operations;
mod redo_log;
mod rewritten;
mod rewritten_logs;
mod round_trips;
mod shown_reads;
mod stream;
mod syncs;
mod threads;
mod tokens;
mod transfers;
mod verify;
mod writers;
