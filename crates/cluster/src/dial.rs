//! Which of a node's addresses to try, in which order.

use polvo_fabric::Address;
use polvo_proto::NodeInfo;
use std::sync::OnceLock;

/// Identity of this host (the kernel's boot id): peers with an equal one can share memory. Empty where there is none.
pub fn host_identity() -> String {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY
        .get_or_init(|| {
            let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            id.trim().to_string()
        })
        .clone()
}

/// Addresses of a node worth trying: shared memory first where the host is ours, never where it is not, and only the
/// provider that was asked for, if one was. Addresses that do not parse are left out.
pub(crate) fn addresses(node: &NodeInfo, host: &str, provider: Option<&str>) -> Vec<Address> {
    let same_host = !host.is_empty() && node.host == host;
    let mut found: Vec<Address> = node
        .addresses
        .iter()
        .filter_map(|text| text.parse().ok())
        .filter(|address: &Address| match provider {
            Some(wanted) => address.provider() == wanted || matches!(address, Address::Sim(_)),
            None => same_host || !matches!(address, Address::Shm(_)),
        })
        .collect();
    found.sort_by_key(|address| !matches!(address, Address::Shm(_))); // stable: the map's order otherwise
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::NodeId;

    #[test]
    fn shared_memory_comes_first_and_only_on_the_same_host() {
        let node = NodeInfo {
            id: NodeId(1),
            host: "h1".into(),
            addresses: [
                "tcp://10.0.0.1:7000",
                "nonsense",
                "shm:///run/p.sock",
                "tcp://10.0.1.1:7000",
            ]
            .map(String::from)
            .to_vec(),
        };
        let dial = |host, provider| {
            addresses(&node, host, provider)
                .iter()
                .map(Address::to_string)
                .collect::<Vec<_>>()
        };
        let tcp = ["tcp://10.0.0.1:7000", "tcp://10.0.1.1:7000"];
        assert_eq!(dial("h1", None), [&["shm:///run/p.sock"][..], &tcp].concat());
        assert_eq!(dial("h2", None), tcp);
        assert_eq!(dial("", None), tcp);
        assert_eq!(dial("h1", Some("tcp")), tcp);
        assert_eq!(dial("h2", Some("shm")), ["shm:///run/p.sock"]);
    }
}
