//! The programs as a user meets them: a development cluster without a mount, used by the path commands, killed, started
//! again, checked, and taken away.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A cluster that is taken down whatever happens.
struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn up(args: &[&str]) -> Cluster {
        let cluster = Cluster {
            dir: tempfile::tempdir().unwrap(),
        };
        let out = cluster.run(&[&["up", "--size", "64M", "--medium", "file", "--dir", "{dir}"], args].concat());
        assert!(out.status.success(), "{}", text(&out));
        cluster
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    /// Runs `polvo`; `{dir}` in an argument becomes the cluster's directory.
    fn run(&self, args: &[&str]) -> Output {
        let home = self.home();
        let args = args.iter().map(|a| a.replace("{dir}", home.to_str().unwrap()));
        Command::new(env!("CARGO_BIN_EXE_polvo"))
            .args(args)
            .current_dir(self.dir.path())
            .env("POLVO_CLUSTER_DIR", &home)
            .env_remove("POLVO_SECRET_FILE")
            .output()
            .unwrap()
    }

    /// Runs a command that must succeed; its output.
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "polvo {args:?}: {}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Runs a command that must fail with a code; what it says.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(code), "polvo {args:?}: {}", text(&out));
        text(&out)
    }

    fn pid(&self, node: u16) -> String {
        let file = self.home().join(format!("node{node}/polvod.pid"));
        fs::read_to_string(file).unwrap().split(' ').next().unwrap().to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 0..3 {
                let log = self.home().join(format!("node{node}/polvod.log"));
                eprintln!(
                    "--- {}\n{}",
                    log.display(),
                    fs::read_to_string(&log).unwrap_or_default()
                );
            }
        }
        self.run(&["down", "--wait", "5", "--dir", "{dir}"]);
    }
}

fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// A tree with what copies must keep: modes, times, links, an empty file and directory, a hole, odd names.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("sub/empty")).unwrap();
    fs::write(at.join("plain"), b"text\n").unwrap();
    fs::write(at.join("nothing"), b"").unwrap();
    fs::write(at.join("sub/name with\nnewline"), b"odd").unwrap();
    fs::write(
        at.join("sub/large"),
        (0..3_000_000u32).map(|i| (i / 7) as u8).collect::<Vec<u8>>(),
    )
    .unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    symlink("../plain", at.join("sub/link")).unwrap();
    fs::set_permissions(at.join("plain"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
}

/// Every file below a directory: path, mode, time, contents or link target.
fn describe(at: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![at.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = match () {
                () if meta.is_dir() => String::new(),
                () if meta.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                () => format!("{:x}", fnv(&fs::read(&path).unwrap())),
            };
            let name = path.strip_prefix(at).unwrap().to_path_buf();
            // A symbolic link's mode says nothing.
            let mode = if meta.is_symlink() { 0 } else { meta.mode() };
            all.push(format!(
                "{name:?} {mode:o} {}.{} {content}",
                meta.mtime(),
                meta.mtime_nsec()
            ));
            if meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    all.sort();
    all
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn files_without_a_mount() {
    let cluster = Cluster::up(&["--nodes", "3", "--provider", "tcp"]);
    let here = cluster.dir.path();
    make_tree(&here.join("tree"));

    // In, and out again, unchanged.
    cluster.ok(&["put", "-r", "tree", "/"]);
    cluster.ok(&["get", "-r", "-q", "/tree", "back"]);
    assert_eq!(describe(&here.join("back")), describe(&here.join("tree")));
    assert!(
        fs::metadata(here.join("back/sparse")).unwrap().blocks() < 1024,
        "the hole is still one"
    );

    cluster.ok(&["get", "-r", "-q", "--provider", "shm", "/tree", "over-shm"]);
    assert_eq!(describe(&here.join("over-shm")), describe(&here.join("tree")));

    assert_eq!(cluster.ok(&["ls", "/tree"]), "nothing\nplain\nsparse\nsub\n");
    let long = cluster.ok(&["ls", "-l", "/tree"]);
    assert!(
        long.lines()
            .any(|l| l.starts_with("-rw-r-----") && l.ends_with(" plain")),
        "{long}"
    );
    assert!(cluster.ok(&["ls", "-l", "/tree/sub"]).contains("link -> ../plain"));
    assert_eq!(cluster.ok(&["cat", "/tree/plain", "/tree/sub/link"]), "text\ntext\n");
    cluster.ok(&["mkdir", "-p", "/a/b/c"]);
    cluster.ok(&["mv", "/tree/plain", "/a/b/c"]);
    cluster.ok(&["mv", "/a/b", "/a/moved"]);
    let stat: serde_json::Value = serde_json::from_str(&cluster.ok(&["stat", "--json", "/a/moved/c/plain"])).unwrap();
    assert_eq!((stat["size"].as_u64(), stat["mode"].as_str()), (Some(5), Some("0640")));

    // Errors name what they are about, and are exit code 1; a wrong command line is 2.
    assert!(
        cluster
            .fails(1, &["cat", "/missing"])
            .contains("/missing: no such file")
    );
    assert!(cluster.fails(1, &["mkdir", "/a"]).contains("exists"));
    assert!(cluster.fails(1, &["rm", "/a"]).contains("-r"));
    assert!(cluster.fails(1, &["get", "/a", "."]).contains("-r"));
    assert!(cluster.fails(2, &["ls", "polvo://nowhere/"]).contains("no port"));
    cluster.ok(&["rm", "-f", "/missing"]);
    assert!(
        cluster
            .fails(1, &["mv", "-n", "/tree/nothing", "/tree/sparse"])
            .contains("exists")
    );

    // A wrong secret is refused, soon.
    let wrong = here.join("wrong");
    fs::write(&wrong, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).unwrap();
    cluster.fails(1, &["ls", "--secret-file", "wrong", "/"]);
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(
        cluster
            .fails(2, &["ls", "--secret-file", "wrong", "/"])
            .contains("chmod 600")
    );

    assert!(cluster.ok(&["fsck", "--online"]).starts_with("clean: 12 regions"));
    cluster.ok(&["rm", "-r", "/tree", "/a"]);
    assert_eq!(cluster.ok(&["ls", "-a", "/"]), "");
}

#[test]
fn killed_nodes_are_missed_and_come_back() {
    let cluster = Cluster::up(&["--nodes", "2", "--regions-per-node", "2"]);
    let here = cluster.dir.path();
    make_tree(&here.join("tree"));
    cluster.ok(&["put", "-r", "-q", "tree", "/"]);
    let status: serde_json::Value = serde_json::from_str(&cluster.ok(&["status", "--json"])).unwrap();
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2));
    assert!(
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|n| n["reachable"] == true)
    );
    assert_eq!(status["regions"].as_array().map(Vec::len), Some(4));
    let df = cluster.ok(&["df"]);
    assert!(df.contains("all") && df.contains("room for files: "), "{df}");

    let pid = cluster.pid(1);
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let status = cluster.run(&["status", "--json"]);
    assert_eq!(status.status.code(), Some(1), "{}", text(&status));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let reachable: Vec<bool> = status["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["reachable"] == true)
        .collect();
    assert_eq!(reachable, [true, false]);

    // Only what is missing is started; then everything is there.
    let said = cluster.ok(&["up", "--dir", "{dir}"]);
    assert!(said.contains("running already") && said.contains("started"), "{said}");
    cluster.ok(&["get", "-r", "-q", "/tree", "back"]);
    assert_eq!(describe(&here.join("back")), describe(&here.join("tree")));

    // All killed and started again at once.
    for _ in 0..5 {
        let pids = [cluster.pid(0), cluster.pid(1)];
        assert!(Command::new("kill").arg("-9").args(&pids).status().unwrap().success());
        cluster.ok(&["up", "--dir", "{dir}"]);
        assert_eq!(cluster.ok(&["cat", "/tree/plain"]), "text\n");
    }

    // What the cluster is cannot be changed by starting it again.
    assert!(
        cluster
            .fails(2, &["up", "--dir", "{dir}", "--nodes", "1"])
            .contains("--nodes 2")
    );

    // Stopped, its pools are clean, are nobody else's, and are still good.
    assert_eq!(
        cluster.fails(8, &["fsck", "--dir", "{dir}"]).matches("in use").count(),
        1
    );
    cluster.ok(&["down", "--keep", "--dir", "{dir}"]);
    assert!(cluster.ok(&["fsck", "--dir", "{dir}"]).contains("clean: 4 regions"));
    let pool = cluster.home().join("pools/node0.pool");
    let pool = pool.to_str().unwrap();
    let format = [
        "format",
        "--pool",
        pool,
        "--node",
        "0",
        "--cluster",
        "3f3f3f3f-3f3f-4f3f-bf3f-3f3f3f3f3f3f",
    ];
    assert!(cluster.fails(1, &format).contains("--force"));
    cluster.ok(&["up", "--dir", "{dir}"]);
    assert_eq!(cluster.ok(&["cat", "/tree/plain"]), "text\n");

    cluster.ok(&["down", "--dir", "{dir}"]);
    assert!(!cluster.home().exists(), "nothing is left");
    assert!(cluster.ok(&["down", "--dir", "{dir}"]).contains("nothing to stop"));
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("cluster");
    let mount = dir.path().join("mnt");
    fs::create_dir(&mount).unwrap();
    fs::write(mount.join("file"), "in the way").unwrap();
    let polvo = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_polvo"))
            .args(args)
            .args(["--dir", home.to_str().unwrap()])
            .output();
        out.unwrap()
    };
    let out = polvo(&[
        "up",
        "--nodes",
        "1",
        "--size",
        "64M",
        "--medium",
        "file",
        "--mount",
        mount.to_str().unwrap(),
    ]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains("not empty"), "{}", text(&out));
    assert!(!home.exists() && mount.join("file").exists());

    fs::create_dir(&home).unwrap();
    fs::write(home.join("precious"), "x").unwrap();
    let out = polvo(&["up", "--nodes", "1"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(home.join("precious").exists());
}

#[test]
fn replicas_are_asked_for_and_shown() {
    let cluster = Cluster::up(&["--nodes", "2", "--replicas", "2", "--regions-per-node", "2"]);
    let config = fs::read_to_string(cluster.home().join("node1/polvod.toml")).unwrap();
    assert!(config.contains("\nreplicas = 2\n"), "{config}");
    let said = cluster.ok(&["up", "--dir", "{dir}"]);
    assert!(said.contains("no majority without each other"), "{said}");
    let other = cluster.fails(2, &["up", "--dir", "{dir}", "--replicas", "1"]);
    assert!(other.contains("--replicas 2, not 1"), "{other}");

    // copies may be whole by now or not
    let status = cluster.run(&["status", "--json"]);
    assert!(matches!(status.status.code(), Some(0 | 8)), "{}", text(&status));
    let is_degraded = status.status.code() == Some(8);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["replicas"]["wanted"], 2);
    assert_eq!(status["replicas"]["degraded"], is_degraded);
    for region in status["regions"].as_array().unwrap() {
        let others = ["mirrors", "missing"].map(|role| region[role].as_array().unwrap().clone());
        assert_eq!(others.concat().len(), 1, "{region}");
        assert_ne!(others.concat()[0], region["primary"]);
    }
    for node in status["nodes"].as_array().unwrap() {
        let copies = node["copies"].as_array().expect("copies are listed");
        assert_eq!(node["copies_total"], copies.len());
    }
    let shown = text(&cluster.run(&["status"]));
    assert!(
        shown.contains("\nreplicas: ") && shown.contains("\nPRIMARY  MIRRORS"),
        "{shown}"
    );
}

#[test]
fn directories_are_turned_to_other_kinds_of_regions() {
    let cluster = Cluster::up(&[
        "--nodes",
        "3",
        "--set",
        "replicas=1",
        "--set",
        "replicas=3,durability=async",
    ]);
    let config = fs::read_to_string(cluster.home().join("node1/polvod.toml")).unwrap();
    let sets = r#"sets = ["replicas=1", "replicas=3 durability=async"]"#;
    assert!(config.contains(sets), "{config}");
    cluster.ok(&[
        "up",
        "--dir",
        "{dir}",
        "--set",
        "replicas=1",
        "--set",
        "replicas=3,durability=async",
    ]);
    let other = cluster.fails(2, &["up", "--dir", "{dir}", "--set", "replicas=3"]);
    assert!(
        other.contains("has --set replicas=1 --set replicas=3 durability=async, not replicas=3"),
        "{other}"
    );

    cluster.ok(&["mkdir", "/scratch", "/ahead"]);
    assert_eq!(
        cluster.ok(&["set", "/scratch"]),
        "/scratch: new files replicas=2 durability=sync placement=hash\n"
    );
    assert_eq!(
        cluster.ok(&["set", "/scratch", "replicas=1", "placement=local"]),
        "/scratch: new files replicas=1 placement=local\n"
    );
    assert_eq!(
        cluster.ok(&["set", "/ahead", "durability=async"]),
        "/ahead: new files replicas=3 durability=async placement=hash\n"
    );
    let here = cluster.dir.path();
    fs::write(here.join("file"), "text").unwrap();
    let status: serde_json::Value = serde_json::from_slice(&cluster.run(&["status", "--json"]).stdout).unwrap();
    for (dir, wanted) in [("/scratch", 1), ("/ahead", 3)] {
        for i in 0..6 {
            let at = format!("{dir}/file{i}");
            cluster.ok(&["put", "-q", "file", &at]);
            let stat: serde_json::Value = serde_json::from_str(&cluster.ok(&["stat", "--json", &at])).unwrap();
            let region = usize::try_from(stat["region"].as_u64().unwrap()).unwrap();
            assert_eq!(status["regions"][region]["wanted"], wanted, "{stat}");
            assert!(
                stat["regions"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("replicas={wanted}")),
                "{stat}"
            );
            assert_eq!(cluster.ok(&["cat", &at]), "text");
        }
    }
    assert!(
        cluster
            .ok(&["stat", "/scratch"])
            .contains("new files replicas=1, by local")
    );
    let shown = text(&cluster.run(&["status"]));
    for line in [
        "replicas=2 durability=sync\n",
        "regions: replicas=1\n",
        "replicas=3 durability=async\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(
        cluster
            .ok(&["set", "/scratch", "default"])
            .contains("replicas=2 durability=sync placement=local")
    );

    assert!(cluster.fails(1, &["set", "/scratch/file0"]).contains("not a directory"));
    assert!(
        cluster
            .fails(1, &["set", "/nowhere", "replicas=1"])
            .contains("/nowhere")
    );
    let none = cluster.fails(1, &["set", "/ahead", "replicas=2", "durability=async"]);
    assert!(none.contains("no regions with replicas=2 durability=async"), "{none}");
    assert!(
        none.contains("replicas=3 durability=async"),
        "it says what there is: {none}"
    );
    assert!(
        cluster
            .fails(2, &["set", "/ahead", "copies=2"])
            .contains("replicas=NUMBER")
    );
    assert!(
        cluster
            .fails(2, &["set", "/ahead", "placement=there"])
            .contains("hash or local")
    );
}

#[test]
fn more_replicas_than_nodes_are_refused_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("deep/cluster");
    let out = Command::new(env!("CARGO_BIN_EXE_polvo"))
        .args(["up", "--nodes", "2", "--replicas", "3", "--dir", home.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(
        text(&out).contains("--replicas 3: ") && text(&out).contains("there are 2"),
        "{}",
        text(&out)
    );
    assert!(!dir.path().join("deep").exists());
    let out = Command::new(env!("CARGO_BIN_EXE_polvo"))
        .args([
            "up",
            "--nodes",
            "2",
            "--set",
            "replicas=1",
            "--dir",
            home.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(
        text(&out).contains("--set: regions with replicas=1 are there already"),
        "{}",
        text(&out)
    );
    assert!(!dir.path().join("deep").exists());
}
