//! Free TCP ports for the nodes of a development cluster.
//!
//! They are taken from below the range that the kernel gives to outgoing connections: a port of that range may be in use
//! by a client when a killed node wants it back, and a client that keeps trying to reach a dead node there may even end up
//! connected to itself.

use crate::{CliError, Context};
use std::net::{Ipv4Addr, TcpListener};

/// Lowest port considered.
const LOWEST: u16 = 15_000;

/// First port of the kernel's range for outgoing connections.
fn ephemeral_from() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range
        .split_whitespace()
        .next()
        .and_then(|low| low.parse().ok())
        .unwrap_or(32_768)
}

/// Ports of the loopback address that nobody listens at; `count` different ones, all bound at once while they are
/// chosen, and free again on return.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>, CliError> {
    let above = ephemeral_from();
    // A kernel whose outgoing range begins low leaves no room below it: any free port then.
    let room = above.saturating_sub(LOWEST);
    let mut start = [0u8; 2];
    getrandom::fill(&mut start).expect("the system always has random numbers");
    let start = u16::from_le_bytes(start);
    let mut bound = Vec::new();
    let mut tried = 0;
    while bound.len() < count && tried < room {
        let port = LOWEST + ((u32::from(start) + u32::from(tried)) % u32::from(room)) as u16;
        tried += 1;
        bound.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    while bound.len() < count {
        bound.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(|| "finding a free port".into())?);
    }
    bound
        .iter()
        .map(|l| l.local_addr().map(|a| a.port()).doing(|| "finding a free port".into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_free_and_different() {
        let ports = free_ports(20).unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 20);
        assert!(ports.iter().all(|p| *p >= 1024));
    }
}
