//! Where in a TOML text an error lies: byte offsets from the parser into line and key.

use crate::ConfigProblem;
use std::path::Path;

/// Line (from 1) of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    let offset = offset.min(text.len());
    text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() + 1
}

/// The key, with its section, whose assignment (or section header) lies at or last before a byte offset; empty when
/// there is none.
pub fn key_at(text: &str, offset: usize) -> String {
    let line = line_of(text, offset);
    let mut section = "";
    let mut key = "";
    for content in text.lines().take(line) {
        let content = content.trim();
        if let Some(header) = content.strip_prefix('[').filter(|_| !content.contains('=')) {
            section = header.trim_start_matches('[').split(']').next().unwrap_or("").trim();
            key = "";
        } else if let Some((name, _)) = content.split_once('=') {
            let name = name.trim().trim_matches(['"', '\'']);
            if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
                key = name;
            }
        }
    }
    match (section, key) {
        ("", key) => key.to_string(),
        (section, "") => section.to_string(),
        (section, key) => format!("{section}.{key}"),
    }
}

/// Puts a parser's error into words: file, line, key, what is wrong. `help` names the command that shows all keys.
pub fn explain(file: &Path, text: &str, error: &toml::de::Error, help: &str) -> ConfigProblem {
    let (line, key) = match error.span() {
        Some(span) => (line_of(text, span.start), key_at(text, span.start)),
        None => (0, String::new()),
    };
    let message = error.message().trim().replace('\n', ", ");
    ConfigProblem {
        file: file.to_path_buf(),
        line,
        key,
        what: format!("{message} ({help})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "top = 1\n[pool]\n# path = no\npath = \"x\"\nlist = [\n  1,\n  2\n]\n[[cluster.nodes]]\nid = 0\n";

    #[test]
    fn names_the_key_with_its_section() {
        for (needle, line, key) in [
            ("top", 1, "top"),
            ("[pool]", 2, "pool"),
            ("\"x\"", 4, "pool.path"),
            ("2\n]", 7, "pool.list"),
            ("[[cluster", 9, "cluster.nodes"),
            ("0\n", 10, "cluster.nodes.id"),
        ] {
            let offset = TEXT.rfind(needle).expect("needle is in the text");
            assert_eq!(
                (line_of(TEXT, offset), key_at(TEXT, offset).as_str()),
                (line, key),
                "{needle:?}"
            );
        }
        assert_eq!(line_of(TEXT, 10_000), 11);
    }
}
