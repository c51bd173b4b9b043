//! Clients that get into each other's way.

use super::{healthy, options, run};
use crate::common::*;
use polvo_proto::*;
use tokio::task::spawn_local;

#[test]
fn of_many_that_create_the_same_names_one_wins_each() {
    run(options(37), async |cluster| {
        let clients: Vec<Caller> = (0..6).map(|i| Caller::new(cluster, &format!("c{i}"))).collect();
        let tasks: Vec<_> = clients
            .iter()
            .cloned()
            .map(|c| {
                spawn_local(async move {
                    let mut won = 0;
                    for i in 0..40 {
                        match c.create(ROOT, &format!("f{i}")).await {
                            Ok(_) => won += 1,
                            Err(FsError::Exists) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    won
                })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += task.await.unwrap();
        }
        assert_eq!(won, 40);
        assert_eq!(clients[0].names(ROOT).await.unwrap().len(), 40);
        healthy(cluster).await;
    });
}

#[test]
fn renames_of_the_same_names_lose_nothing() {
    for seed in 0..6 {
        run(options(seed), async |cluster| {
            let first = Caller::new(cluster, "first");
            let mut dirs = Vec::new();
            for i in 0..3 {
                dirs.push(first.directory_at(cluster, i, "d").await);
            }
            let mut files = Vec::new();
            for i in 0..4 {
                files.push(first.create(dirs[i % 3], &format!("f{i}")).await.unwrap());
            }
            let tasks: Vec<_> = (0..4)
                .map(|t| {
                    let c = Caller::new(cluster, &format!("c{t}"));
                    let dirs = dirs.clone();
                    spawn_local(async move {
                        let mut rng = Rng::new(seed * 100 + t);
                        for _ in 0..60 {
                            let (from, to) = (dirs[rng.roll(3) as usize], dirs[rng.roll(3) as usize]);
                            let (old, new) = (format!("f{}", rng.roll(4)), format!("f{}", rng.roll(4)));
                            let mode = [RenameMode::NoReplace, RenameMode::Exchange][rng.roll(2) as usize];
                            match c.rename_with(from, &old, to, &new, mode).await {
                                Ok(()) | Err(FsError::NotFound | FsError::Exists) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let mut found = Vec::new();
            for dir in &dirs {
                for name in first.names(*dir).await.unwrap() {
                    found.push(first.find(*dir, &name).await.unwrap());
                }
            }
            found.sort_by_key(|f| f.ino);
            files.sort_by_key(|f| f.ino);
            assert_eq!(found, files);
            healthy(cluster).await;
        });
    }
}

/// Two names on two nodes are exchanged back and forth by two clients at the same time. Each exchange that is reported as
/// done has happened: one name seen before, and the other after somebody else's exchange, shows the same file twice,
/// which is no reason to believe that it has two names and nothing is to be done.
#[test]
fn exchanges_at_once_in_opposite_directions_all_happen() {
    for seed in 0..20 {
        run(options(seed), async |cluster| {
            let c = Caller::new(cluster, "first");
            let dirs = [
                c.mkdir(ROOT, "a").await.unwrap(),
                c.mkdir(ROOT, "b").await.unwrap(),
                c.mkdir(ROOT, "c").await.unwrap(),
            ];
            for at in 0..3 {
                let (a, b) = (dirs[at], dirs[(at + 1) % 3]);
                let file = c.create(a, "n").await.unwrap();
                let other = c.create(b, "n").await.unwrap();
                let mut exchanged = 0;
                for _ in 0..20 {
                    let tasks = [(a, b), (b, a)].map(|(from, to)| {
                        let c = Caller::new(cluster, "exchanger");
                        let request = Request::Rename {
                            old_dir: from,
                            old_name: b"n".to_vec(),
                            new_dir: to,
                            new_name: b"n".to_vec(),
                            mode: RenameMode::Exchange,
                        };
                        spawn_local(async move { c.ask(to.ino.region(), request).await })
                    });
                    for task in tasks {
                        match task.await.unwrap() {
                            Ok(_) => exchanged += 1,
                            Err(FsError::Busy) => {}
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                    }
                    let found = (c.find(a, "n").await.unwrap(), c.find(b, "n").await.unwrap());
                    let expected = if exchanged % 2 == 0 {
                        (file, other)
                    } else {
                        (other, file)
                    };
                    assert_eq!(found, expected, "seed {seed}: after {exchanged} exchanges");
                }
                c.unlink(a, "n").await.unwrap();
                c.unlink(b, "n").await.unwrap();
            }
            healthy(cluster).await;
        });
    }
}

#[test]
fn directories_moved_into_each_other_at_once_make_no_ring() {
    for seed in 0..6 {
        run(options(seed), async |cluster| {
            let c = Caller::new(cluster, "first");
            let mut dirs = Vec::new();
            for i in 0..5 {
                dirs.push(c.mkdir(ROOT, &format!("d{i}")).await.unwrap());
            }
            let tasks: Vec<_> = (0..4)
                .map(|t| {
                    let c = Caller::new(cluster, &format!("c{t}"));
                    let dirs = dirs.clone();
                    spawn_local(async move {
                        let mut rng = Rng::new(seed * 100 + t + 1);
                        let mut moved = 0;
                        for _ in 0..40 {
                            // wherever it is just now, under whichever parent
                            let which = rng.roll(5) as usize;
                            let name = format!("d{which}");
                            let mut parents = dirs.clone();
                            parents.push(ROOT);
                            let mut from = None;
                            for parent in parents {
                                if c.find(parent, &name).await == Ok(dirs[which]) {
                                    from = Some(parent);
                                }
                            }
                            let to = dirs[rng.roll(5) as usize];
                            let Some(from) = from else { continue };
                            match c.rename(from, &name, to, &name).await {
                                Ok(()) => moved += 1,
                                Err(FsError::Invalid(_) | FsError::NotFound | FsError::NotEmpty) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        moved
                    })
                })
                .collect();
            let mut moved = 0;
            for task in tasks {
                moved += task.await.unwrap();
            }
            assert!(moved > 5, "{moved}");
            healthy(cluster).await;
        });
    }
}
