//! SQLite on two mounts at once: what locks, reads and writes loses nothing; what shares memory is refused by mounts that are
//! told to (`mmap=private`).

mod common;
use common::{mount_at, mounted};
use polvo_client::Client;
use polvo_proto::Cred;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Adds rows, each in a transaction of its own, and says how many were committed; or why it could not.
const PROGRAM: &str = r#"
import sqlite3, sys
path, journal, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    db.execute(f"PRAGMA journal_mode={journal}")
    db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    for n in range(rows):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?)", (n,))
        db.execute("COMMIT")
    sound = db.execute("PRAGMA integrity_check").fetchone()[0]
    print(sound, db.execute("SELECT count(*) FROM t").fetchone()[0])
except sqlite3.Error as error:
    print(type(error).__name__)
"#;

fn sqlite(path: &Path, journal: &str, rows: u32) -> Child {
    let mut python = Command::new("python3");
    python
        .args(["-c", PROGRAM])
        .arg(path)
        .args([journal, &rows.to_string()]);
    python.stdout(Stdio::piped()).spawn().expect("python3 is there")
}

fn said(process: Child) -> String {
    let output = process.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn sqlite_on_two_mounts_loses_nothing_or_is_refused() {
    const ROWS: u32 = 60;
    let Some(m) = mounted("mmap=private") else { return };
    let other = Client::internal(m.node.colocated(), "other".to_owned(), Cred::Kernel);
    other.start_maintenance();
    let dir = m.dir.parent().expect("a parent").join("other");
    std::fs::create_dir(&dir).expect("writable");
    let mount = mount_at(&other, &dir, "mmap=private").expect("mounted");
    let both = [m.dir.join("rollback"), dir.join("rollback")].map(|path| sqlite(&path, "DELETE", ROWS));
    for process in both {
        let said = said(process);
        assert!(said.starts_with("ok "), "{said}");
    }
    assert_eq!(
        said(sqlite(&m.dir.join("rollback"), "DELETE", 0)),
        format!("ok {}", 2 * ROWS)
    );
    for path in [m.dir.join("wal"), dir.join("wal")] {
        assert_eq!(said(sqlite(&path, "WAL", 1)), "OperationalError");
    }
    mount.unmount(false).expect("nobody uses it");
    other.shutdown();
}
