//! What the suite was written to judge: each goal over the rows that bear on it, however many those are.

use super::{Row, figure};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Something that has to be so.
struct Goal {
    what: &'static str,
    target: &'static str,
    experiment: &'static str,
    /// The rows with a target of that experiment whose names hold one of these.
    rows: &'static [&'static str],
}

/// In the order in which a reader meets them.
const GOALS: &[Goal] = &[
    Goal {
        what: "library in the node, 4 KiB random read",
        target: "at most 1.5 times a copy of pages that are in no cache, at most half of pread on tmpfs",
        experiment: "library",
        rows: &["4 KiB random read"],
    },
    Goal {
        what: "library in the node, 4 KiB durable overwrite",
        target: "at most twice a durable copy, at most pwrite on tmpfs",
        experiment: "library",
        rows: &["4 KiB durable overwrite"],
    },
    Goal {
        what: "library in the node, 1 MiB reads and writes",
        target: "at least 0.9 of memcpy, of a durable copy",
        experiment: "library",
        rows: &["1 MiB"],
    },
    Goal {
        what: "library in the node, create, stat and unlink",
        target: "at least twice tmpfs",
        experiment: "library",
        rows: &["create", "stat", "unlink"],
    },
    Goal {
        what: "one-sided 8 B read and compare-and-swap over shm",
        target: "at most 100 ns",
        experiment: "network",
        rows: &["read 8 B", "compare-and-swap"],
    },
    Goal {
        what: "RPC over shm, both sides awake",
        target: "at most 2.5 times a bare ping-pong",
        experiment: "network",
        rows: &["shm RPC 64 B, awake"],
    },
    Goal {
        what: "one reactor, 8 clients",
        target: "at least 1,000,000 requests a second",
        experiment: "network",
        rows: &["all slots filled"],
    },
    Goal {
        what: "RPC and 4 KiB one-sided read over tcp",
        target: "at most 1.25 times a raw socket that waits the same way",
        experiment: "network",
        rows: &["tcp RPC", "tcp one-sided read 4 KiB"],
    },
    Goal {
        what: "1 MiB one-sided read and write over tcp",
        target: "at least 0.95 of a raw socket, at least libfabric",
        experiment: "network",
        rows: &["tcp 1 MiB"],
    },
    Goal {
        what: "one client beside the raw link, 1 MiB (Octopus, Fig. 7b)",
        target: "at least 0.96 for reads, 0.89 for writes",
        experiment: "octopus-fig7",
        rows: &[""],
    },
    Goal {
        what: "one more copy shows at 1 MiB (Octopus, Fig. 11)",
        target: "at most 0.97",
        experiment: "octopus-fig11",
        rows: &[""],
    },
    Goal {
        what: "client-active against server-active, up to 16 KiB, 8 clients",
        target: "higher throughput",
        experiment: "octopus-fig12",
        rows: &["client-active"],
    },
    Goal {
        what: "node's processor for a client-active read over shm",
        target: "none",
        experiment: "octopus-fig12",
        rows: &["node's CPU"],
    },
    Goal {
        what: "self-identified RPC, 1 to 100 clients (Octopus, Fig. 13)",
        target: "throughput flat within a tenth",
        experiment: "octopus-fig13",
        rows: &[""],
    },
    #[cfg(feature = "two-phase")]
    Goal {
        what: "collect-dispatch against two-phase commit, latency (Octopus, Fig. 15)",
        target: "at most 0.7",
        experiment: "octopus-fig15",
        rows: &["latency"],
    },
    #[cfg(feature = "two-phase")]
    Goal {
        what: "collect-dispatch against two-phase commit, throughput",
        target: "at least 1.5",
        experiment: "octopus-fig15",
        rows: &["throughput"],
    },
    Goal {
        what: "one-sided reads and log commits over 1 to 8 clients (Orion, Fig. 4.10)",
        target: "no less throughput, within a tenth",
        experiment: "orion-fig4.10",
        rows: &[""],
    },
    Goal {
        what: "regions with one mirror, 4 KiB writes of a client on its own",
        target: "at most 2.1 times as without, and 1.25 times that and a one-sided write",
        experiment: "replication",
        rows: &[
            "shm 4 KiB overwrite, 2",
            "shm 4 KiB append, 2",
            "tcp 4 KiB overwrite, 2",
            "tcp 4 KiB append, 2",
        ],
    },
    Goal {
        what: "regions with one mirror, 4 KiB writes inside a node",
        target: "at most as without, and 1.5 durable copies",
        experiment: "replication",
        rows: &["inside 4 KiB overwrite, 2", "inside 4 KiB append, 2"],
    },
    Goal {
        what: "two mirrors beside one, 4 KiB writes",
        target: "at most 1.3 times",
        experiment: "replication",
        rows: &["overwrite, 3", "append, 3"],
    },
    Goal {
        what: "regions with one mirror, 1 MiB writes",
        target: "at most 2.2 times as without",
        experiment: "replication",
        rows: &["1 MiB write, 2"],
    },
    Goal {
        what: "regions with one mirror, create and unlink of 8 clients",
        target: "at least 0.63 of the throughput without",
        experiment: "replication",
        rows: &["create", "unlink"],
    },
    Goal {
        what: "regions with one mirror, file server and mail server",
        target: "at least 0.85 of the throughput without",
        experiment: "replication",
        rows: &["server"],
    },
    Goal {
        what: "promotion of a mirror, 32 to 512 MiB (Hydra, Table 2)",
        target: "at most 250 ms, flat within a tenth",
        experiment: "replication",
        rows: &["promotion"],
    },
    Goal {
        what: "a mounted file system that does nothing, 4 KiB reads of one job",
        target: "at least 1.5 times the library used before (fuser, 4 threads)",
        experiment: "null-mount",
        rows: &["null mount 4 KiB read, 1 job"],
    },
    Goal {
        what: "colocated mount, 4 KiB random reads and writes, the kernel keeps nothing",
        target: "at least 0.85 of a mounted file system that does nothing",
        experiment: "mount-requests",
        rows: &["4 KiB random"],
    },
    Goal {
        what: "colocated mount, write and fdatasync",
        target: "at most 1.1 times a write alone",
        experiment: "mount-requests",
        rows: &["and fdatasync"],
    },
    Goal {
        what: "mounts colocated, over shm and over tcp, stat of files in use",
        target: "at least 0.8 of tmpfs",
        experiment: "mount-requests",
        rows: &["stat of files in use"],
    },
    Goal {
        what: "mounts colocated, over shm and over tcp, 4 KiB reads of a file open for reading",
        target: "at least 0.85 of tmpfs",
        experiment: "mount-requests",
        rows: &["open for reading"],
    },
    Goal {
        what: "colocated mount, create and close, unlink, open and close of an open file",
        target: "at least 0.8 of a mounted file system that does nothing",
        experiment: "mount-requests",
        rows: &["inside create and close", "inside unlink", "inside open and close"],
    },
    Goal {
        what: "requests of the kernel for a stat in use, open and close, create and close, unlink",
        target: "0, 3, 5, 2",
        experiment: "mount-requests",
        rows: &["inside requests"],
    },
    Goal {
        what: "colocated mount, 1 MiB reads and writes, 1 and 4 jobs",
        target: "at least 0.9 of a mounted file system that does nothing",
        experiment: "mount-requests",
        rows: &["1 MiB"],
    },
    Goal {
        what: "git status, find and du on a mount, a tree that was just read",
        target: "at least half as fast as on tmpfs",
        experiment: "mount-programs",
        rows: &[""],
    },
    Goal {
        what: "a change of what one other keeps",
        target: "one round trip more",
        experiment: "mount-tokens",
        rows: &["round trips"],
    },
    Goal {
        what: "a change of what 1,000 others keep",
        target: "at most 50 ms",
        experiment: "mount-tokens",
        rows: &["1000 holders"],
    },
    Goal {
        what: "two mounts write to one file in turn, after 10 turns",
        target: "nobody is called back",
        experiment: "mount-tokens",
        rows: &["recalls"],
    },
    Goal {
        what: "a change after a holder was killed",
        target: "at most 2.2 s",
        experiment: "mount-tokens",
        rows: &["killed"],
    },
    Goal {
        what: "mounts beside GlusterFS, stat of each file once",
        target: "at least 50 times",
        experiment: "compare",
        rows: &["inside stat", "shm stat", "tcp stat"],
    },
    Goal {
        what: "mounts beside GlusterFS, create and unlink",
        target: "at least 10 and 5 times; over tcp 3 and 2",
        experiment: "compare",
        rows: &["create", "unlink"],
    },
    Goal {
        what: "mounts beside GlusterFS, 4 KiB reads past the kernel's pages, writes with fdatasync",
        target: "at least 10 times; over tcp 3",
        experiment: "compare",
        rows: &["4 KiB"],
    },
    Goal {
        what: "mounts beside GlusterFS, 1 MiB reads past the kernel's pages, writes",
        target: "at least 4 times; over tcp 2",
        experiment: "compare",
        rows: &["1 MiB"],
    },
    Goal {
        what: "mounts beside GlusterFS whose kernel keeps nothing that may have changed, repeated stat",
        target: "at least 50 times",
        experiment: "compare",
        rows: &["repeated stat"],
    },
    Goal {
        what: "an empty file not open",
        target: "at most 400 bytes of persistent memory and 200 of DRAM",
        experiment: "memory",
        rows: &["persistent memory of an empty file", "DRAM of a file not open"],
    },
    Goal {
        what: "DRAM after opening a pool",
        target: "independent of the number of files, within a tenth",
        experiment: "memory",
        rows: &["DRAM after opening"],
    },
    Goal {
        what: "cost over the size of directories",
        target: "flat within a tenth",
        experiment: "flat",
        rows: &["directory"],
    },
    Goal {
        what: "cost over the size of files",
        target: "flat within a tenth",
        experiment: "flat",
        rows: &["in a sparse file"],
    },
    Goal {
        what: "cost over sessions, and over how full the pool is",
        target: "flat within a tenth",
        experiment: "flat",
        rows: &["sessions", "full"],
    },
];

/// A goal, and how near a run has come to it.
#[derive(Serialize, Deserialize, Debug)]
pub struct Outcome {
    /// What it is about.
    pub what: Cow<'static, str>,
    /// What has to be, in words.
    pub target: Cow<'static, str>,
    /// The experiment whose rows judge it.
    pub experiment: Cow<'static, str>,
    /// What was measured, in words: each figure where they are few, else the ends of their range.
    pub measured: String,
    /// Rows that met their part.
    pub met: usize,
    /// Rows that bear on it; at least one.
    pub rows: usize,
}

impl Outcome {
    /// Whether every row met its part.
    pub fn is_met(&self) -> bool {
        self.met == self.rows
    }
}

/// The goals that a run has figures for.
pub fn outcomes(rows: &[Row]) -> Vec<Outcome> {
    GOALS.iter().filter_map(|goal| outcome(goal, rows)).collect()
}

fn outcome(goal: &Goal, rows: &[Row]) -> Option<Outcome> {
    let of_goal = |row: &&Row| {
        let processor = "node's CPU";
        row.met.is_some()
            && row.experiment == goal.experiment
            && goal.rows.iter().any(|part| row.name.contains(part))
            // a figure of another kind among the rows of its experiment
            && (goal.rows.contains(&processor) || !row.name.contains(processor))
    };
    let mut rows: Vec<&Row> = rows.iter().filter(of_goal).collect();
    rows.sort_by(|a, b| judged(a).total_cmp(&judged(b)));
    let (first, last) = (rows.first()?, rows.last()?);
    let measured = match rows.len() {
        1..=4 => rows.iter().map(|row| shown(row)).collect::<Vec<_>>().join(", "),
        all => format!("{} to {}, {all} figures", shown(first), shown(last)),
    };
    Some(Outcome {
        what: goal.what.into(),
        target: goal.target.into(),
        experiment: goal.experiment.into(),
        measured,
        met: rows.iter().filter(|row| row.met == Some(true)).count(),
        rows: rows.len(),
    })
}

/// The number that the target is about.
fn judged(row: &Row) -> f64 {
    row.ratio.unwrap_or(row.value)
}

fn shown(row: &Row) -> String {
    match row.ratio {
        Some(ratio) => format!("{ratio:.2}x"),
        None => format!("{} {}", figure(row.value), row.unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Findings, Target, Unit};
    use crate::samples::Samples;
    use crate::suite::{COMPARE, EXPERIMENTS};

    #[test]
    fn every_goal_is_of_an_experiment() {
        for goal in GOALS {
            let mut all = EXPERIMENTS.iter().chain([&COMPARE]);
            let known = all.any(|experiment| experiment.name == goal.experiment);
            assert!(known, "{}", goal.experiment);
        }
    }

    #[test]
    fn a_goal_is_met_when_all_of_its_rows_are_and_left_out_without_any() {
        let exact = Samples::exact;
        let mut found = Findings::new("octopus-fig12", &[]);
        found.figure("a, server-active", Unit::PerS, &exact(10.0));
        for (name, value) in [("a, client-active", 20.0), ("b, client-active", 5.0)] {
            found.against(
                name,
                Unit::PerS,
                &exact(value),
                "a, server-active",
                Some(Target::AtLeast(1.0)),
            );
        }
        let cpu = "a, client-active: node's CPU";
        found.bounded(cpu, Unit::Ns, &exact(0.0), Target::AtMost(10.0));
        let (rows, _) = found.finish("t", "a");
        let [throughput, processor] = &outcomes(&rows)[..] else {
            panic!("two goals have rows")
        };
        assert_eq!((throughput.met, throughput.rows, throughput.is_met()), (1, 2, false));
        assert_eq!(throughput.measured, "0.50x, 2.00x");
        assert_eq!((processor.rows, processor.is_met()), (1, true));
        assert_eq!(processor.measured, "0.00 ns");
    }
}
