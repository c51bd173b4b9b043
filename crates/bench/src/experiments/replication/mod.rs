//! What copies of a region cost, and how long it takes until one of them is served.

mod data;
mod modes;
mod names;
mod place;
mod promotion;

use crate::BenchError;
use crate::report::Findings;
use crate::suite::{Context, Experiment};

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    name: "replication",
    title: "Regions with copies",
    about: "One region at one node, without copies, with one mirror (2 replicas) and with two (3 replicas), in turn in one run. Inside: \
            the client is colocated with the primary, which reaches its mirrors over shm. shm and tcp: the client is on its own, and \
            clients and nodes reach each other that way. All nodes are in one process, each with a reactor thread, and so mirrors that are reached over \
            tcp have no processor of their own here; where there are more threads than cores, nobody polls. Every write is durable \
            at all replicas when it returns.\n\n\
            A write with mirrors cannot take less than the same without, and a one-sided write of the same bytes; inside, where \
            that is a copy, less than the same without, and a durable copy. Reads, and looking at names, of regions with copies are requests; \
            without copies clients on their own do that one-sided.\n\n\
            Modes: one mirror, which is waited for (sync, sync-flush) or not (async), beside no copies. \
            8 clients take turns on one thread, each with a directory of its own. File server: a file of 128 KiB is made and written, \
            16 KiB are appended to it, it is read, another one is removed, a third one looked at. Mail server: a file is removed, \
            one of 16 KiB made, one of them read and appended to, one read; writes with fsync.\n\n\
            Promotion: from a mirror's decision to take the place of a primary that is gone (detection is not counted) until it serves the region, by its \
            log: it has the map changed by a majority of three nodes, puts in place what has come, and recovers the region. Eight files of 32, 128 \
            and 512 MiB in all (Hydra, Table 2: 241 to 246 ms), and many files of 100 bytes.",
    run,
};

fn run(context: &Context<'_>, found: &mut Findings<'_>) -> Result<(), BenchError> {
    for provider in ["shm", "tcp"] {
        let places = place::places(context, provider)?;
        data::run(&places, provider, context, found)?;
        names::run(&places, provider, context, found)?;
        places.into_iter().try_for_each(place::Place::end)?;
        modes::run(provider, context, found)?;
    }
    promotion::run(context, found)
}
