//! The configuration file of `polvod`, with every key explained: what `polvod --print-config` prints.

/// A complete configuration; keys that have a default are commented out and show it.
pub const TEMPLATE: &str = r#"# Configuration of polvod, the PolvoFS node. TOML. Relative paths start at this file's directory.
# Times are in milliseconds. Check a file with: polvod --check-config --config FILE

[cluster]
# Identity of the cluster, a UUID. May be left out when the secret file names it (CLUSTER-ID:SECRET).
id = "3f3f3f3f-3f3f-4f3f-bf3f-3f3f3f3f3f3f"

# File with the secret that nodes and clients share; nobody but its owner and group may have access (chmod 600).
secret_file = "secret"

# What becomes of the bytes that travel over tcp: "auth": whoever changes, repeats or leaves out any of them ends the connection;
# "encrypt": nobody can read them either; "none": they are as they are, for a network that nobody else can reach. Of what the two
# sides of a connection want, the stronger is used. Peers on one machine (shm) need none.
# security = "auth"

# Regions a node: pieces in which load and space are spread. The same in all nodes' files, and never changed once
# the cluster has files.
# regions_per_node = 4

# At how many nodes each region is kept, 1 to 5 and no more than there are nodes: at the one that serves it, and at so many less one
# that have a copy. Nothing is answered before all of them have it (but see durability); all but one of them may die. 1: a lost pool
# loses its files. The same in all nodes' files, and never changed once the cluster has files. docs/replication.md says what happens
# when nodes die. Left out: 2 where there are three nodes or more, else 1.
# replicas = 1

# A node that has been away for so many seconds is not waited for any more: the copies that it had are made at other nodes, where there
# are some that have none of them yet, and room. When it comes back it gives up what it had. 0: never, regions lack a copy until it is
# back. It costs time on the network and room in the pools; so longer than a restart of a machine takes.
# replace_after_s = 600

# When a change of a region that is kept at several nodes is answered. "sync-flush": every copy has it, flushed to its persistence
# domain; "sync": every copy has it, which is the same today; "async": the node that serves the region has it, and the copies get it
# within a second: when that node dies, the last changes may be lost that were not synced (fsync). The same in all nodes' files, and
# never changed once the cluster has files.
# durability = "sync"

# Further region sets, for the directories that `polvo set` puts there: each with `replicas`, `durability` or both, what is left
# out as above. Each set has regions_per_node regions at each node. The same in all nodes' files, and never changed once the cluster
# has files. Scratch files beside others, say: ["replicas=1"].
# sets = []

# All nodes of the cluster, the same in all nodes' files.
#   id         number of the node, 0 to 65535
#   addresses  where the others reach it, in order of preference: tcp://HOST:PORT, shm:///PATH/OF/SOCKET
#   host       which machine it is on: nodes and clients on the same one use shm with each other, if they have shm
#              addresses. Left out: this machine for this node and for loopback addresses, else unknown (tcp)
#   added      true: it came to the cluster after that was made (polvo node add); the regions of a cluster are dealt out to the others
[[cluster.nodes]]
id = 0
addresses = ["tcp://10.0.0.1:7400"]
# host = ""
# added = false

[[cluster.nodes]]
id = 1
addresses = ["tcp://10.0.0.2:7400"]

[node]
# Which of the nodes this is.
id = 0

# Where to listen. Left out: the node's addresses above.
# listen = ["tcp://0.0.0.0:7400", "shm:///run/polvo/n0.sock"]

# While requests follow each other within so many microseconds the node polls for the next one before it sleeps. A request that
# finds it awake is answered in a fraction of the time, and a core is used for as long as there is load. Not with fewer cores
# than programs and nodes need. Left out: 100 over shm, unless there is a single core, and 0 over tcp, where polling serves one
# client sooner and holds up many. 0: it sleeps at once; at most 1000000.
# poll_us = 100

# Threads that serve connections; each serves some of them, and a client has a connection a thread. Left out: one for each core,
# at most 16. At most 64.
# reactors = 4

# File that holds the process id while polvod runs.
# pid_file = ""

# To whom one-sided access to file data is given: all who know the secret, or nodes only. For clients of such a node the
# node moves the data itself. It keeps data from clients that use tcp; one that uses shm has the whole pool mapped.
# one_sided = "all"

# Every so many hours the node compares all file data that it holds with its checksums, and says in its log what is damaged
# (`polvo scrub` does it at once); 0: never.
# scrub_every_h = 168
# At most so many MiB a second.
# scrub_mib_s = 64

[pool]
# The persistent memory: a device (/dev/dax0.0), a file on a DAX file system, a file on tmpfs, or any file.
# Made by: polvo format --config FILE
path = "/dev/dax0.0"

# How stores become durable: auto (detected), clwb, clflushopt, clflush, or none (eADR; media without power
# protection to begin with).
# persistence = "auto"

# Whether a pool that `polvo format` makes has checksums of file data. They take 8 bytes a page of 4096, and some time of each write;
# see docs/performance.md. A pool that is there stays as it was made.
# checksums = true

# Every wait has its limit here. docs/operations.md says what happens after each.
[timeouts]
# Connecting to a node, handshake included.
# connect_ms = 2000
# One request to a node.
# rpc_ms = 8000
# How long an operation waits for an inode that another transaction holds, before EBUSY.
# held_ms = 4000
# What a client holds (open files, space) comes back this long after it was last heard of.
# lease_ms = 30000
# How long a change waits for a mount that keeps the inode and does not answer. Less than held_ms.
# token_ms = 1500
# How long programs on the mount inside this node wait for another node that is away, before EIO (mount option soft: they
# do not wait).
# away_ms = 10000
# A clean end: unmounting and stopping. Afterwards the process ends anyway.
# stop_ms = 10000

# A mount of the cluster inside this node. Leave the section out for none.
# [mount]
# dir = "/mnt/polvo"
# Mount options, comma-separated: ro, suid, dev, noexec, noatime, allow_other, acl, nolock,
# cache=none|strict|pages, mmap=one|shared|private, threads=N
# options = ""

[log]
# error, warn, info, debug or trace; or a filter such as "info,polvo_node=debug".
# level = "info"
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    /// The template with every commented-out key made real.
    fn uncommented() -> String {
        let key = |l: &str| {
            l.strip_prefix("# ")
                .filter(|k| k.starts_with('[') || k.contains(" = "))
                .map(str::to_string)
        };
        TEMPLATE
            .lines()
            .map(|l| key(l).unwrap_or_else(|| l.to_string()) + "\n")
            .collect()
    }

    #[test]
    fn the_template_is_a_valid_configuration() {
        let config = Config::parse(TEMPLATE, Path::new("/etc/polvo/polvod.toml")).unwrap();
        assert_eq!(config.secret_file, Path::new("/etc/polvo/secret"));
        assert_eq!(config.nodes.len(), 2);
        assert!(config.mount.is_none());
    }

    #[test]
    fn the_commented_out_keys_show_the_defaults() {
        let plain = Config::parse(TEMPLATE, Path::new("/c.toml")).unwrap();
        let full = Config::parse(&uncommented(), Path::new("/c.toml")).unwrap();
        assert_eq!(full.timeouts, plain.timeouts);
        assert_eq!(full.regions_per_node, plain.regions_per_node);
        assert_eq!(full.replace_after, plain.replace_after);
        assert_eq!(full.sets, plain.sets);
        assert_eq!(plain.poll, None, "what is shown holds for shm");
        assert_eq!(full.persistence, plain.persistence);
        assert_eq!(full.log_level, plain.log_level);
        assert!(full.mount.is_some(), "the section is in the template");
    }
}
