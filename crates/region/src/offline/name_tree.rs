//! The tree of names over all regions, put right: every name leads to an inode, every inode has as many names as it
//! says, every directory one, and all hangs below the root. What has lost its name goes to `/lost+found`.
//!
//! Each step is a commit of one log, and each leaves a tree that is no worse, so that a repair which is cut short is
//! repeated by the next one.

use super::repair::Repaired;
use crate::{Region, RegionError};
use polvo_format::{FileKind, Ino, RegionId, TxnId};
use polvo_proto::{FsError, InodeRef, Intent, NewFile, Placement};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Directories climbed for a path that is shown.
const PATH_MAX: usize = 64;
const LOST_AND_FOUND: &str = "lost+found";
/// Other names tried when that one is taken by something else.
const LOST_AND_FOUND_TRIES: u32 = 10;

/// The regions of a cluster, by number.
pub(super) type Regions = BTreeMap<RegionId, Region>;

/// A name in a directory.
#[derive(Clone)]
pub(super) struct Name {
    pub dir: InodeRef,
    pub name: Vec<u8>,
    pub target: InodeRef,
    pub kind: FileKind,
}

struct Fact {
    inode: InodeRef,
    kind: FileKind,
    nlink: u32,
    /// of a directory
    parent: InodeRef,
}

/// What all regions together say.
pub(super) struct Facts {
    inodes: BTreeMap<Ino, Fact>,
    pub names: Vec<Name>,
    /// where directories are named
    above: BTreeMap<Ino, (Ino, Vec<u8>)>,
}

impl Facts {
    /// Reads all inodes.
    pub fn of(regions: &Regions) -> Facts {
        let mut facts = Facts {
            inodes: BTreeMap::new(),
            names: Vec::new(),
            above: BTreeMap::new(),
        };
        for region in regions.values() {
            region.each_inode(&mut |inode| {
                let fact = Fact {
                    inode: inode.inode_ref(),
                    kind: inode.attr.kind,
                    nlink: inode.attr.nlink,
                    parent: inode.parent,
                };
                facts.inodes.insert(inode.attr.ino, fact);
                if let Ok(directory) = inode.directory_body() {
                    facts.names.extend(directory.after(0).map(|(name, dentry)| Name {
                        dir: inode.inode_ref(),
                        name: name.to_vec(),
                        target: dentry.target,
                        kind: dentry.kind,
                    }));
                }
            });
        }
        for name in facts.names.iter().filter(|name| name.kind == FileKind::Directory) {
            let place = (name.dir.ino, name.name.clone());
            facts.above.insert(name.target.ino, place);
        }
        facts
    }

    /// Regions that names or directories lead to.
    pub fn mentioned(&self) -> BTreeSet<RegionId> {
        let names = self.names.iter().map(|name| name.target.ino.region());
        let directories = self.inodes.values().filter(|fact| fact.kind == FileKind::Directory);
        names.chain(directories.map(|fact| fact.parent.ino.region())).collect()
    }

    /// Does this very inode exist?
    fn exists(&self, inode: InodeRef) -> bool {
        self.inodes.get(&inode.ino).is_some_and(|fact| fact.inode == inode)
    }

    /// The path of a name, as far as it can be told.
    pub fn path(&self, name: &Name) -> String {
        let mut parts = vec![String::from_utf8_lossy(&name.name).into_owned()];
        let mut at = name.dir.ino;
        while at != Ino::ROOT && parts.len() < PATH_MAX {
            let Some((dir, name)) = self.above.get(&at) else {
                parts.push(format!("(directory {at:?})"));
                break;
            };
            parts.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        if at == Ino::ROOT {
            parts.push(String::new());
        }
        parts.reverse();
        parts.join("/")
    }
}

/// Puts names, parents and link counts right. `keep`: damaged inodes that could not be repaired; names that lead there
/// stay, and nothing is said of their own names.
pub(super) fn put_right(regions: &mut Regions, keep: &BTreeSet<Ino>, now_ns: i64, report: &mut Repaired) {
    let facts = Facts::of(regions);
    let mut tree = Tree {
        regions,
        facts,
        now_ns,
        report,
        lost_and_found: None,
    };
    tree.strike_wrong_names(keep);
    tree.one_name_a_directory();
    // below a directory that cannot be read nobody knows what hangs
    if keep.is_empty() {
        tree.attach_directories();
        tree.attach_files();
        tree.put_link_counts_right();
    } else {
        let why =
            "some directories or files could not be repaired: link counts and inodes without a name are left alone";
        tree.report.refused.push(why.into());
    }
}

struct Tree<'a> {
    regions: &'a mut Regions,
    facts: Facts,
    now_ns: i64,
    report: &'a mut Repaired,
    lost_and_found: Option<InodeRef>,
}

impl Tree<'_> {
    fn region(&mut self, ino: Ino) -> Result<&mut Region, RegionError> {
        self.regions.get_mut(&ino.region()).ok_or_else(|| FsError::Stale.into())
    }

    /// Takes a name away, on the media and in the facts.
    fn strike(&mut self, at: usize, why: &str) -> bool {
        let (name, now_ns) = (self.facts.names[at].clone(), self.now_ns);
        let path = self.facts.path(&name);
        let struck = self
            .region(name.dir.ino)
            .and_then(|region| region.strike_name(name.dir, &name.name, now_ns));
        self.report.step(struck, || format!("name {path} removed: {why}"))
    }

    fn strike_wrong_names(&mut self, keep: &BTreeSet<Ino>) {
        let mut right = Vec::new();
        for at in 0..self.facts.names.len() {
            let name = self.facts.names[at].clone();
            let target = name.target;
            let fact = self.facts.inodes.get(&target.ino);
            let why = match fact {
                _ if keep.contains(&target.ino) => None,
                None => Some(format!("inode {:?} is not in use", target.ino)),
                Some(fact) if fact.inode != target => Some(format!("inode {:?} is another file's by now", target.ino)),
                Some(_) if target.ino == Ino::ROOT => Some("it leads to the root".into()),
                Some(_) => None,
            };
            if let Some(why) = why {
                if !self.strike(at, &why) {
                    right.push(name);
                }
                continue;
            }
            let mut name = name;
            if let Some(kind) = fact.map(|fact| fact.kind).filter(|kind| *kind != name.kind) {
                let (path, now_ns) = (self.facts.path(&name), self.now_ns);
                let entered = self
                    .region(name.dir.ino)
                    .and_then(|region| region.enter_name(name.dir, &name.name, target, kind, now_ns));
                let what = || format!("name {path}: called a {:?}, is a {kind:?}", name.kind);
                if self.report.step(entered, what) {
                    name.kind = kind;
                }
            }
            right.push(name);
        }
        self.facts.names = right;
    }

    /// Of several names of a directory the one stays that its parent has by what the directory itself says.
    fn one_name_a_directory(&mut self) {
        let mut of: BTreeMap<Ino, Vec<usize>> = BTreeMap::new();
        for (at, name) in self.facts.names.iter().enumerate() {
            if name.kind == FileKind::Directory {
                of.entry(name.target.ino).or_default().push(at);
            }
        }
        let mut struck = BTreeSet::new();
        for (ino, names) in of.into_iter().filter(|(_, names)| names.len() > 1) {
            let parent = self.facts.inodes.get(&ino).map(|fact| fact.parent);
            let stays = names
                .iter()
                .copied()
                .find(|at| Some(self.facts.names[*at].dir) == parent);
            let stays = stays.unwrap_or(names[0]);
            for at in names.into_iter().filter(|at| *at != stays) {
                if self.strike(at, "the directory has another name") {
                    struck.insert(at);
                }
            }
        }
        let mut at = 0..;
        self.facts
            .names
            .retain(|_| !struck.contains(&at.next().expect("there are numbers enough")));
    }

    /// The directories that can be reached from some.
    fn reach(&self, from: Ino, children: &BTreeMap<Ino, Vec<Ino>>, reached: &mut BTreeSet<Ino>) {
        let mut to_visit = VecDeque::from([from]);
        while let Some(dir) = to_visit.pop_front() {
            if reached.insert(dir) {
                to_visit.extend(children.get(&dir).into_iter().flatten());
            }
        }
    }

    /// Directories that cannot be reached get a name in `/lost+found`; parents are set to where the names are.
    fn attach_directories(&mut self) {
        let mut children: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        let mut name_of: BTreeMap<Ino, usize> = BTreeMap::new();
        for (at, name) in self.facts.names.iter().enumerate() {
            if name.kind == FileKind::Directory {
                children.entry(name.dir.ino).or_default().push(name.target.ino);
                name_of.insert(name.target.ino, at);
            }
        }
        let directories: Vec<Ino> = self
            .facts
            .inodes
            .values()
            .filter(|fact| fact.kind == FileKind::Directory)
            .map(|fact| fact.inode.ino)
            .collect();
        let not_empty: BTreeSet<Ino> = self.facts.names.iter().map(|name| name.dir.ino).collect();
        let mut reached = BTreeSet::new();
        self.reach(Ino::ROOT, &children, &mut reached);
        // first those without a name, then one of each ring that is left
        let nameless = directories.iter().filter(|ino| !name_of.contains_key(ino));
        let order: Vec<Ino> = nameless.chain(&directories).copied().collect();
        let mut struck = BTreeSet::new();
        for ino in order {
            let Some(fact) = self.facts.inodes.get(&ino).filter(|_| !reached.contains(&ino)) else {
                continue;
            };
            let (inode, nlink) = (fact.inode, fact.nlink);
            match name_of.get(&ino) {
                // removed, and just not freed: it goes with the others without a name
                None if nlink == 0 && !not_empty.contains(&ino) => continue,
                Some(&at) => {
                    if !self.strike(at, "the directory contains itself") {
                        continue;
                    }
                    struck.insert(at);
                }
                None => {}
            }
            if self.attach(inode, FileKind::Directory) {
                self.reach(ino, &children, &mut reached);
            }
        }
        let mut at = 0..;
        self.facts
            .names
            .retain(|_| !struck.contains(&at.next().expect("there are numbers enough")));

        let mut wrong = Vec::new();
        for name in self.facts.names.iter().filter(|name| name.kind == FileKind::Directory) {
            let fact = self.facts.inodes.get(&name.target.ino);
            if fact.is_some_and(|fact| fact.parent != name.dir) {
                wrong.push((name.target, name.dir));
            }
        }
        let root = self.facts.inodes.get(&Ino::ROOT).map(|fact| (fact.inode, fact.parent));
        wrong.extend(
            root.filter(|(root, parent)| root != parent)
                .map(|(root, _)| (root, root)),
        );
        for (dir, parent) in wrong {
            let now_ns = self.now_ns;
            let set = self
                .region(dir.ino)
                .and_then(|region| region.set_parent(dir, parent, now_ns));
            let what = || format!("inode {:?}: parent set to {:?}, where its name is", dir.ino, parent.ino);
            self.report.step(set, what);
        }
    }

    /// Files with a link count and no name get one in `/lost+found`.
    fn attach_files(&mut self) {
        let named: BTreeSet<Ino> = self.facts.names.iter().map(|name| name.target.ino).collect();
        let lost: Vec<(InodeRef, FileKind)> = self
            .facts
            .inodes
            .values()
            .filter(|fact| fact.kind != FileKind::Directory && fact.nlink != 0 && !named.contains(&fact.inode.ino))
            .map(|fact| (fact.inode, fact.kind))
            .collect();
        for (inode, kind) in lost {
            self.attach(inode, kind);
        }
    }

    /// Gives an inode a name in `/lost+found`.
    fn attach(&mut self, inode: InodeRef, kind: FileKind) -> bool {
        let now_ns = self.now_ns;
        let InodeRef { ino, generation } = inode;
        let name = format!("#{}-{}-{}", ino.region().0, ino.slot(), generation.0);
        let entered = self.lost_and_found().and_then(|dir| {
            let region = self.region(dir.ino)?;
            region.enter_name(dir, name.as_bytes(), inode, kind, now_ns)?;
            Ok(dir)
        });
        let dir = entered.as_ref().ok().copied();
        let what = || format!("inode {ino:?}: a {kind:?} without a name, now /{LOST_AND_FOUND}/{name}");
        let done = self.report.step(entered.map(|_| ()), what);
        if let (true, Some(dir)) = (done, dir) {
            self.facts.names.push(Name {
                dir,
                name: name.into_bytes(),
                target: inode,
                kind,
            });
        }
        done
    }

    /// The directory for what has lost its name; made when it is not there.
    fn lost_and_found(&mut self) -> Result<InodeRef, RegionError> {
        if let Some(dir) = self.lost_and_found {
            return Ok(dir);
        }
        let now_ns = self.now_ns;
        let (attr, _) = self.region(Ino::ROOT)?.attr(Ino::ROOT, None)?;
        let root = InodeRef {
            ino: Ino::ROOT,
            generation: attr.generation,
        };
        let region = self.region(Ino::ROOT)?;
        for n in 0..LOST_AND_FOUND_TRIES {
            let name = match n {
                0 => LOST_AND_FOUND.to_string(),
                n => format!("{LOST_AND_FOUND}.{n}"),
            };
            let found = match region.lookup(root, name.as_bytes()) {
                Ok((there, _)) if there.kind == FileKind::Directory => there.target,
                Ok(_) => continue,
                Err(RegionError::Fs(FsError::NotFound)) => make_directory(region, root, &name, now_ns)?,
                Err(e) => return Err(e),
            };
            if !self.facts.exists(found) {
                let fact = Fact {
                    inode: found,
                    kind: FileKind::Directory,
                    nlink: 2,
                    parent: root,
                };
                self.facts.inodes.insert(found.ino, fact);
                self.facts.names.push(Name {
                    dir: root,
                    name: name.clone().into_bytes(),
                    target: found,
                    kind: FileKind::Directory,
                });
                self.report.done.push(format!("directory /{name} made"));
            }
            self.lost_and_found = Some(found);
            return Ok(found);
        }
        Err(FsError::Exists.into())
    }

    /// Files get as many links as they have names; directories with a name are alive.
    fn put_link_counts_right(&mut self) {
        let mut names_of: BTreeMap<Ino, u32> = BTreeMap::new();
        for name in &self.facts.names {
            *names_of.entry(name.target.ino).or_default() += 1;
        }
        let mut wrong = Vec::new();
        for fact in self.facts.inodes.values() {
            let ino = fact.inode.ino;
            let names = names_of.get(&ino).copied().unwrap_or(0);
            if names == 0 && ino != Ino::ROOT {
                continue; // nobody's, and freed; or it could not be given a name, and stays
            }
            // how many subdirectories there are a directory counts itself
            let expected = match fact.kind {
                FileKind::Directory => 2,
                _ => names,
            };
            let differs = match fact.kind {
                FileKind::Directory => fact.nlink == 0,
                _ => fact.nlink != expected,
            };
            if differs {
                wrong.push((fact.inode, fact.nlink, expected));
            }
        }
        for (inode, was, expected) in wrong {
            let now_ns = self.now_ns;
            let set = self
                .region(inode.ino)
                .and_then(|region| region.set_links(inode, expected, now_ns));
            let what = || format!("inode {:?}: link count {was}, now {expected}", inode.ino);
            self.report.step(set, what);
        }
    }
}

fn make_directory(region: &mut Region, root: InodeRef, name: &str, now_ns: i64) -> Result<InodeRef, RegionError> {
    let kind = FileKind::Directory;
    let file = NewFile {
        kind,
        mode: 0o700,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        umask: 0,
        xattrs: Vec::new(),
    };
    let new = Intent::NewInode {
        file,
        parent: root,
        placement: Placement::default(),
        unnamed: false,
    };
    let add = Intent::AddName {
        dir: root,
        name: name.into(),
        target: None,
        kind,
    };
    let decided = region.decide(TxnId::default(), &[new, add], &[], now_ns)?;
    let attr = decided.outcomes[0].attr;
    Ok(InodeRef {
        ino: attr.ino,
        generation: attr.generation,
    })
}
