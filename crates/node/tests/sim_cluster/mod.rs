//! Three nodes and a client in one thread, without sockets, files or real time: the operations of a file system at the
//! level of requests.

mod files;
mod names;
mod requests;
mod space;
mod tokens;

use polvo_node::sim::{Cluster, ClusterOptions, run};

fn with_cluster(test: impl AsyncFnOnce(&mut Cluster)) {
    run(
        ClusterOptions {
            seed: 7,
            ..ClusterOptions::default()
        },
        async |cluster| {
            test(cluster).await;
            cluster.rest().await;
            assert_eq!(cluster.check(), Vec::<String>::new());
        },
    );
}
