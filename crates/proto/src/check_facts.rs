//! Consistency across regions: what each region knows of its inodes and names, and how these facts must fit together.
//!
//! A region checks itself; what no region can see alone (does every name lead to an inode, does every inode have as
//! many names as it says) is joined here, from facts that come from pools (offline) or from nodes (online).

use crate::InodeRef;
use polvo_format::{FileKind, Ino, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// An inode in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeFact {
    /// Which.
    pub inode: InodeRef,
    /// Its type.
    pub kind: FileKind,
    /// Its count of names.
    pub nlink: u32,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameFact {
    /// Where.
    pub dir: Ino,
    /// What it names.
    pub target: InodeRef,
    /// The type that the entry states.
    pub kind: FileKind,
}

/// What the check of one region found, or one page of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckFacts {
    /// Which region.
    pub region: RegionId,
    /// Damage inside the region.
    pub findings: Vec<String>,
    /// Its inodes.
    pub inodes: Vec<InodeFact>,
    /// Its names.
    pub names: Vec<NameFact>,
    /// Page to ask for next; `None` after the last.
    pub next: Option<u64>,
}

impl CheckFacts {
    /// Takes in the page that follows.
    pub fn append(&mut self, page: CheckFacts) {
        debug_assert_eq!(self.region, page.region);
        self.findings.extend(page.findings);
        self.inodes.extend(page.inodes);
        self.names.extend(page.names);
        self.next = page.next;
    }
}

/// Joins the facts of regions into findings: every name leads to an inode of its generation and type, link counts equal
/// names, each directory has exactly one parent and hangs below the root, no inode with a link count lacks a name.
/// Findings inside the regions come first. An inode without links and without names is no finding (it is held open, or
/// is freed when its region is next recovered).
///
/// When some region named by others is not among `facts`, what would need it is left out: names into it, and all
/// counts.
pub fn join_facts(facts: &[CheckFacts]) -> Vec<String> {
    let mut findings: Vec<String> = facts
        .iter()
        .flat_map(|f| f.findings.iter().map(|what| format!("region {}: {what}", f.region.0)))
        .collect();
    let known: HashSet<RegionId> = facts.iter().map(|f| f.region).collect();
    let inodes: HashMap<Ino, InodeFact> = facts
        .iter()
        .flat_map(|f| f.inodes.iter().map(|i| (i.inode.ino, *i)))
        .collect();

    let mut complete = known.contains(&Ino::ROOT.region());
    let mut names_of: HashMap<Ino, u32> = HashMap::with_capacity(inodes.len());
    let mut subdirectories_of: HashMap<Ino, u32> = HashMap::new();
    let mut parent_of: HashMap<Ino, Ino> = HashMap::new();
    for name in facts.iter().flat_map(|f| &f.names) {
        let target = name.target.ino;
        if !known.contains(&target.region()) {
            complete = false;
            continue;
        }
        *names_of.entry(target).or_default() += 1;
        match inodes.get(&target) {
            None => {
                findings.push(format!(
                    "directory {:?} names inode {target:?}, which is not in use",
                    name.dir
                ));
                continue;
            }
            Some(found) if found.inode.generation != name.target.generation => findings.push(format!(
                "directory {:?} names inode {target:?} {}, but the slot holds {}",
                name.dir, name.target.generation, found.inode.generation
            )),
            Some(found) if found.kind != name.kind => findings.push(format!(
                "directory {:?} calls inode {target:?} a {:?}, but it is a {:?}",
                name.dir, name.kind, found.kind
            )),
            Some(_) => {}
        }
        match inodes.get(&name.dir) {
            None => findings.push(format!("inode {:?} has names but is not in use", name.dir)),
            Some(dir) if dir.kind != FileKind::Directory => {
                findings.push(format!("inode {:?} has names but is a {:?}", name.dir, dir.kind));
            }
            Some(_) => {}
        }
        if name.kind == FileKind::Directory {
            *subdirectories_of.entry(name.dir).or_default() += 1;
            if let Some(other) = parent_of.insert(target, name.dir) {
                findings.push(format!(
                    "directory {target:?} is named by both {other:?} and {:?}",
                    name.dir
                ));
            }
        }
    }
    if complete {
        check_counts(&inodes, &names_of, &subdirectories_of, &mut findings);
        check_reachable(&inodes, &parent_of, &mut findings);
    }
    let local = facts.iter().map(|f| f.findings.len()).sum::<usize>();
    findings[local..].sort_unstable(); // hash order is no order: the same damage prints the same
    findings
}

fn check_counts(
    inodes: &HashMap<Ino, InodeFact>,
    names_of: &HashMap<Ino, u32>,
    subdirectories_of: &HashMap<Ino, u32>,
    findings: &mut Vec<String>,
) {
    for fact in inodes.values() {
        let ino = fact.inode.ino;
        let names = names_of.get(&ino).copied().unwrap_or(0);
        let is_directory = fact.kind == FileKind::Directory;
        let expected = match is_directory {
            true if names == 0 && ino != Ino::ROOT => 0,
            true => 2 + subdirectories_of.get(&ino).copied().unwrap_or(0),
            false => names,
        };
        if fact.nlink != expected && names == 0 && ino != Ino::ROOT {
            findings.push(format!(
                "{:?} {ino:?} has link count {} but no name",
                fact.kind, fact.nlink
            ));
        } else if fact.nlink != expected {
            findings.push(format!(
                "{:?} {ino:?} has link count {}, should be {expected}",
                fact.kind, fact.nlink
            ));
        }
    }
    if !inodes.contains_key(&Ino::ROOT) {
        findings.push("the root directory is not in use".to_string());
    }
}

/// Every directory with a name must lead up to the root: a ring of directories has names and parents, but no way in.
fn check_reachable(inodes: &HashMap<Ino, InodeFact>, parent_of: &HashMap<Ino, Ino>, findings: &mut Vec<String>) {
    let mut reached: HashSet<Ino> = HashSet::from([Ino::ROOT]);
    for start in parent_of.keys().filter(|ino| inodes.contains_key(ino)) {
        let mut path = Vec::new();
        let mut on_path = HashSet::new();
        let mut at = *start;
        let reaches_root = loop {
            if reached.contains(&at) {
                break true;
            }
            if !on_path.insert(at) {
                break false;
            }
            path.push(at);
            match parent_of.get(&at) {
                Some(parent) => at = *parent,
                None => break false, // a directory without a name: reported by its link count
            }
        };
        if reaches_root {
            reached.extend(path);
        } else if on_path.contains(&at) && path.contains(&at) && parent_of.contains_key(&at) {
            findings.push(format!(
                "directory {start:?} is not reachable from the root: its parents form a ring"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polvo_format::Generation;

    fn at(region: u16, slot: u64) -> InodeRef {
        InodeRef {
            ino: Ino::new(RegionId(region), slot),
            generation: Generation(1),
        }
    }

    fn inode(inode: InodeRef, kind: FileKind, nlink: u32) -> InodeFact {
        InodeFact { inode, kind, nlink }
    }

    fn name(dir: InodeRef, target: InodeRef, kind: FileKind) -> NameFact {
        NameFact {
            dir: dir.ino,
            target,
            kind,
        }
    }

    /// Root with directory `d` (region 1), which holds file `f` (region 0), linked from the root too.
    fn healthy() -> Vec<CheckFacts> {
        let (root, d, f) = (at(0, 1), at(1, 1), at(0, 2));
        vec![
            CheckFacts {
                region: RegionId(0),
                findings: vec![],
                inodes: vec![inode(root, FileKind::Directory, 3), inode(f, FileKind::File, 2)],
                names: vec![name(root, d, FileKind::Directory), name(root, f, FileKind::File)],
                next: None,
            },
            CheckFacts {
                region: RegionId(1),
                findings: vec![],
                inodes: vec![inode(d, FileKind::Directory, 2)],
                names: vec![name(d, f, FileKind::File)],
                next: None,
            },
        ]
    }

    #[test]
    fn healthy_regions_have_no_findings() {
        assert_eq!(join_facts(&healthy()), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_damage_is_found() {
        type Damage = fn(&mut Vec<CheckFacts>);
        let cases: [(&str, Damage); 9] = [
            ("not in use", |f| {
                f[0].inodes.remove(1);
            }),
            ("the slot holds", |f| f[0].inodes[1].inode.generation = Generation(2)),
            ("calls inode", |f| f[1].names[0].kind = FileKind::Symlink),
            ("has link count 3, should be 2", |f| f[0].inodes[1].nlink = 3),
            ("no name", |f| f[0].inodes.push(inode(at(0, 9), FileKind::File, 1))),
            ("named by both", |f| {
                f[1].names.push(name(at(1, 1), at(1, 1), FileKind::Directory))
            }),
            ("a ring", |f| {
                f[0].names.remove(0);
                f[0].inodes[0].nlink = 2;
                f[1].names.push(name(at(1, 1), at(1, 1), FileKind::Directory));
                f[1].inodes[0].nlink = 3;
            }),
            ("has names but is a File", |f| f[0].inodes[1].kind = FileKind::File),
            ("region 1: torn page", |f| f[1].findings.push("torn page".into())),
        ];
        for (expected, damage) in cases {
            let mut facts = healthy();
            damage(&mut facts);
            if expected.starts_with("has names") {
                facts[0].names.push(name(at(0, 2), at(0, 2), FileKind::File));
            }
            let findings = join_facts(&facts);
            assert!(
                findings.iter().any(|f| f.contains(expected)),
                "{expected}: {findings:?}"
            );
        }
    }

    #[test]
    fn a_missing_region_is_no_damage() {
        assert_eq!(join_facts(&healthy()[..1]), Vec::<String>::new());
        assert_eq!(join_facts(&healthy()[1..]), Vec::<String>::new());
    }

    #[test]
    fn a_file_held_open_without_names_is_no_damage() {
        let mut facts = healthy();
        facts[0].inodes.push(inode(at(0, 9), FileKind::File, 0));
        assert_eq!(join_facts(&facts), Vec::<String>::new());
    }
}
