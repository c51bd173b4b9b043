//! Every wait has a limit, every limit a name, and every name a line in the manual.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates that serve users; the others measure and simulate.
const CRATES: [&str; 8] = ["pmem", "fabric", "rpc", "cluster", "node", "client", "fusedev", "fuse"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("sources are there") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // simulators, tests and fuzzers wait in a time of their own
        match path.is_dir() {
            true if name != "sim" => sources(&path, found),
            false if name.ends_with(".rs") && !["sim.rs", "tests.rs", "fuzzing.rs"].contains(&&*name) => {
                found.push(path)
            }
            _ => {}
        }
    }
}

/// `from_millis(250)` and so on, as the manual writes it.
fn shown(code: &str) -> Option<String> {
    let (unit, rest) = code.split_once("Duration::from_")?.1.split_once('(')?;
    let number: u64 = rest.split_once(')')?.0.replace('_', "").parse().ok()?;
    let unit = match unit {
        "secs" => "s",
        "millis" => "ms",
        "micros" => "µs",
        "nanos" => "ns",
        _ => return None,
    };
    Some(format!("{number} {unit}"))
}

#[test]
fn every_limit_and_pause_has_a_name_and_is_in_the_manual() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("crates/")
        .to_path_buf();
    let manual = fs::read_to_string(root.parent().expect("the tree").join("docs/operations.md")).expect("the manual");
    let (mut problems, mut seen) = (Vec::new(), 0);
    for name in CRATES.into_iter().chain(["cli"]) {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file).expect("readable");
            let code = text.split("\n#[cfg(test)]\nmod ").next().expect("the first part");
            for (number, line) in code.lines().enumerate() {
                let Some(value) = shown(line) else { continue };
                let place = format!("{}:{}: {}", file.display(), number + 1, line.trim());
                if file.ends_with("cluster/src/timeouts.rs") && !line.contains("const ") {
                    continue; // defaults of what is configured, and what follows from it
                }
                let Some(constant) = line.split_once("const ").and_then(|(_, rest)| rest.split_once(':')) else {
                    if !line.contains("stop: Duration") {
                        problems.push(format!("{place}: has no name"));
                    }
                    continue;
                };
                seen += 1;
                let row = format!("| `{name}` `{}` | {value} |", constant.0);
                if !manual.contains(&row) {
                    problems.push(format!("{place}: the manual lacks \"{row}\""));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(seen > 20, "{seen} were found");
}
