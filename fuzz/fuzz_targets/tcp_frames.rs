//! What a peer that knows the secret sends over its connection.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| polvo_fabric::fuzzing::tcp_peer_sends(bytes));
