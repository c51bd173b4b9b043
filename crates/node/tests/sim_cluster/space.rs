//! Where inodes and data go, and what is told of it.

use super::with_cluster;
use crate::common::*;
use polvo_node::sim::{ClusterOptions, run};
use polvo_proto::*;
use std::time::Duration;

#[test]
fn two_choices_spread_inodes_evenly() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        let mut dirs = vec![ROOT];
        for i in 0..20 {
            dirs.push(c.mkdir(dirs[i / 3], &format!("d{i}")).await.unwrap());
        }
        const FILES: usize = 2400;
        for i in 0..FILES {
            c.create(dirs[i % dirs.len()], &format!("file-{i}")).await.unwrap();
        }
        let mut total = 0;
        let mut of_node = Vec::new();
        for node in 0..3 {
            let Ok(Reply::Usage(usage)) = c.ask_node(node, Request::Usage).await else {
                panic!("usage")
            };
            total += usage.inodes;
            of_node.push(usage.inodes);
        }
        assert_eq!(total as usize, FILES + 21);
        for count in &of_node {
            let percent = count * 100 / total;
            assert!((20..=47).contains(&percent), "{of_node:?}");
        }
    });
}

#[test]
fn placement_local_keeps_files_at_the_creators_node() {
    with_cluster(async |cluster| {
        let c = Caller::at_home(cluster, "client", 2);
        let dir = c.mkdir(ROOT, "dir").await.unwrap();
        let (name, value, mode) = (b"polvo.placement".to_vec(), b"local".to_vec(), XattrMode::Any);
        c.ask(
            dir.ino.region(),
            Request::SetXattr {
                inode: dir,
                name,
                value,
                mode,
            },
        )
        .await
        .unwrap();
        let sub = c.mkdir(dir, "sub").await.unwrap();
        for i in 0..10 {
            let file = c.create(sub, &format!("f{i}")).await.unwrap();
            assert_eq!(primary(cluster, file), 2, "inherited through {sub:?}");
            assert_eq!(file.ino.region(), sub.ino.region(), "a change of one region");
        }
    });
}

#[test]
fn a_full_node_passes_new_files_on_and_a_full_cluster_says_so() {
    let options = ClusterOptions {
        seed: 3,
        regions_per_node: 1,
        pool_bytes: 6 << 20,
        segment_shift: Some(18),
        ..ClusterOptions::default()
    };
    run(options, async |cluster| {
        let c = Caller::new(cluster, "client");
        let bytes = pattern(60_000, 1);
        let mut made = Vec::new();
        let full = loop {
            // a mapping of its own for each, so that data fills the pools
            let name = format!("f{}", made.len());
            let file = match c.create(ROOT, &name).await {
                Ok(file) => file,
                Err(error) => break error,
            };
            made.push(name);
            if made.len() % 100 == 0 {
                c.links.renew().await;
            }
            match c.write_active(file, 0, &bytes).await {
                Ok(_) => {}
                Err(FsError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(made.len() < 200_000);
        };
        assert_eq!(full, FsError::NoSpace);
        assert!(made.len() > 100 && made.len() < 20_000, "{}", made.len());
        for (i, name) in made.iter().enumerate() {
            if i % 100 == 0 {
                c.links.renew().await;
            }
            c.unlink(ROOT, name).await.unwrap();
        }
        c.links.renew().await;
        cluster.sleep(Duration::from_secs(20)).await;
        let file = c.create(ROOT, "again").await.unwrap();
        c.write_active(file, 0, &bytes).await.unwrap();
        cluster.rest().await;
        assert_eq!(cluster.check(), Vec::<String>::new());
    });
}

#[test]
fn status_is_json_that_tells_what_is_going_on() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "the client");
        let (_, file) = c.file_at(cluster, ROOT, 1, "f").await;
        c.open(file).await.unwrap();
        c.delegate(file.ino.region(), 10).await.unwrap();
        let Ok(Reply::Json(text)) = c.ask_node(1, Request::Status).await else {
            panic!("status")
        };
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["node"], 1);
        assert_eq!(status["listen"][0], "sim://node-1");
        let sessions = status["sessions"].as_array().unwrap();
        let ours = sessions.iter().find(|s| s["name"] == "the client").unwrap();
        assert_eq!((&ours["opens"], &ours["delegated_pages"]), (&1.into(), &10.into()));
        assert!(status["rpc"]["by_kind"]["Open"].as_u64() == Some(1), "{text}");
        assert_eq!(status["regions"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn the_online_check_pages_through_large_regions() {
    with_cluster(async |cluster| {
        let c = Caller::new(cluster, "client");
        for i in 0..2000 {
            c.create(ROOT, &format!("f{i}")).await.unwrap();
        }
        let mut steps = Vec::new();
        let findings = polvo_cluster::check_cluster(&c.links, &mut |done, total| steps.push((done, total))).await;
        assert_eq!(findings, Ok(vec![]));
        assert_eq!(steps, [(0, 6), (3, 6), (6, 6)]);
    });
}
