//! Compares a history with what is promised: one model for all names, one for the bytes and one for the attributes of
//! each inode.

use crate::actor::{DIRECTORY_MODE, FILE_MODE, ROOT};
use crate::attributes;
use crate::contents_model;
use crate::history::Record;
use crate::linearizability::{Event, Model, Verdict, check};
use crate::names_model::{self, Id, Known, Names, Origin};
use crate::operation::{Answer, Operation, Outcome, Shown};
use crate::report::Counts;
use polvo_format::FileKind;
use polvo_proto::{EAGER_MAX, FallocateMode, FsError, InodeRef};
use std::collections::BTreeMap;

/// Steps of the search for an order, for each history.
const STEPS_MAX: u64 = 300_000;
/// Operations shown of an order that was found up to where nothing fits.
const SHOWN: usize = 12;

/// Checks all of a run's histories; returns what is wrong, and adds to the counts. Where changes may have been lost with a node that
/// was ahead of its mirrors, no order explains all answers: then only those are looked at that make no sense whatever was lost. That what
/// is left fits together the [audit](crate::audit) sees.
pub fn judge(records: &[Record], is_small: bool, has_lost_changes: bool, counts: &mut Counts) -> Vec<String> {
    let mut wrong = Vec::new();
    counts.operations += records.len() as u64;
    counts.unknown += records.iter().filter(|record| record.returned.is_none()).count() as u64;
    for record in records {
        if let Some(outcome) = &record.outcome
            && !is_expected(&record.operation, outcome, is_small)
        {
            wrong.push(format!("an answer that makes no sense: {record}"));
        }
    }
    if has_lost_changes {
        counts.lossy += 1;
        return wrong;
    }
    let (model, events, which) = of_names(records);
    examine(&model, &events, &which, records, "names", counts, &mut wrong, |_, _| {
        String::new()
    });
    for (inode, (events, which)) in of_contents(records) {
        let what = format!("the bytes of {}", Shown(inode));
        let why =
            |state: &contents_model::Contents, event: &Event<contents_model::Ask, contents_model::Told>| match event {
                Event {
                    op: contents_model::Ask::Read { offset, len },
                    returned: Some((_, contents_model::Told::Bytes(bytes))),
                    ..
                } => contents_model::difference(state, *offset, *len, bytes),
                _ => String::new(),
            };
        examine(
            &contents_model::File,
            &events,
            &which,
            records,
            &what,
            counts,
            &mut wrong,
            why,
        );
    }
    for (inode, (kind, events, which)) in of_attributes(records) {
        let what = format!("the attributes of {}", Shown(inode));
        let mode = if kind == FileKind::Directory {
            DIRECTORY_MODE
        } else {
            FILE_MODE
        };
        examine(
            &attributes::Inode { mode },
            &events,
            &which,
            records,
            &what,
            counts,
            &mut wrong,
            |_, _| String::new(),
        );
    }
    wrong
}

/// Errors that a caller may be told here, whatever else goes on.
fn is_expected(operation: &Operation, outcome: &Outcome, is_small: bool) -> bool {
    match outcome {
        Ok(Answer::At(_)) => !matches!(operation, Operation::Write { .. }), // short
        Ok(_) => true,
        Err(error) => match error {
            FsError::NoSpace => is_small,
            FsError::Invalid(_) => matches!(operation, Operation::Rename { .. }),
            FsError::Io(why) => matches!(operation, Operation::Sync { .. }) && why.contains("may be lost"),
            FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::NotPermitted
            | FsError::Stale
            | FsError::Busy
            | FsError::NoAttribute
            | FsError::SessionExpired
            | FsError::Unreachable { .. } => true,
            _ => false,
        },
    }
}

#[allow(clippy::too_many_arguments)] // one place, three kinds of histories
fn examine<M: Model>(
    model: &M,
    events: &[Event<M::Op, M::Answer>],
    which: &[usize],
    records: &[Record],
    what: &str,
    counts: &mut Counts,
    wrong: &mut Vec<String>,
    why: impl Fn(&M::State, &Event<M::Op, M::Answer>) -> String,
) {
    counts.longest = counts.longest.max(events.len() as u64);
    match check(model, events, STEPS_MAX) {
        Verdict::Linearizable => counts.checked += 1,
        Verdict::Undecided => counts.undecided += 1,
        Verdict::Impossible { order, state } => {
            let mut text = format!("no order explains what was said of {what}; the longest that was found ends with");
            let from = order.len().saturating_sub(SHOWN);
            for event in &order[from..] {
                text.push_str(&format!("\n    {}", records[which[*event]]));
            }
            text.push_str(&format!(
                "\n  and then\n    {state:?}\n  after which none of these fits:"
            ));
            let left = (0..events.len()).filter(|event| !order.contains(event));
            for event in left.take(SHOWN) {
                let why = why(&state, &events[event]);
                text.push_str(&format!("\n    {}  {why}", records[which[event]]));
            }
            wrong.push(text);
        }
    }
}

/// Events and the records they come from.
type Events<O, A> = (Vec<Event<O, A>>, Vec<usize>);

fn push<O, A>(events: &mut Events<O, A>, records: &[Record], which: usize, op: O, told: Option<A>) {
    let record = &records[which];
    events.0.push(Event {
        op,
        invoked: record.invoked,
        returned: record.returned.and_then(|at| Some((at, told?))),
    });
    events.1.push(which);
}

/// Numbers for all inodes of a run.
#[derive(Default)]
struct Numbers {
    of: BTreeMap<InodeRef, Id>,
    inodes: Vec<Known>,
}

impl Numbers {
    fn add(&mut self, is_directory: bool, origin: Origin) -> Id {
        self.inodes.push(Known { is_directory, origin });
        Id::try_from(self.inodes.len() - 1).expect("a run makes few inodes")
    }

    fn note(&mut self, inode: InodeRef, kind: FileKind, origin: Origin) -> Id {
        if let Some(id) = self.of.get(&inode) {
            if origin == Origin::Acknowledged {
                self.inodes[usize::from(*id)].origin = origin;
            }
            return *id;
        }
        let id = self.add(kind == FileKind::Directory, origin);
        self.of.insert(inode, id);
        id
    }

    fn get(&self, inode: &InodeRef) -> Id {
        self.of
            .get(inode)
            .copied()
            .expect("whatever a client names was told to some client")
    }
}

fn number(records: &[Record]) -> Numbers {
    let mut numbers = Numbers::default();
    numbers.note(ROOT, FileKind::Directory, Origin::Acknowledged);
    for record in records {
        match (&record.operation, &record.outcome) {
            (Operation::Create { .. }, Some(Ok(Answer::Inode(inode, kind)))) => {
                numbers.note(*inode, *kind, Origin::Acknowledged);
            }
            (_, Some(Ok(Answer::Inode(inode, kind)))) => {
                numbers.note(*inode, *kind, Origin::Unclear);
            }
            (_, Some(Ok(Answer::Entries(entries)))) => {
                for (_, inode, kind) in entries {
                    numbers.note(*inode, *kind, Origin::Unclear);
                }
            }
            _ => {}
        }
    }
    numbers
}

/// The history of all names.
fn of_names(records: &[Record]) -> (Names, Vec<Event<names_model::Ask, names_model::Told>>, Vec<usize>) {
    use names_model::Told;
    let mut numbers = number(records);
    let mut events = (Vec::new(), Vec::new());
    for (which, record) in records.iter().enumerate() {
        let is_open = record.returned.is_none();
        if is_open && record.operation.only_looks() {
            continue;
        }
        let refused = match &record.outcome {
            Some(Err(error)) => Some(error.clone()),
            _ => None,
        };
        // these say nothing of names, and nothing was done
        if matches!(
            refused,
            Some(FsError::Busy | FsError::NoSpace | FsError::SessionExpired)
        ) {
            continue;
        }
        let told = refused.map_or(Told::Done, Told::Refused);
        if let Some((ask, told)) = name_event(record, told, &mut numbers) {
            push(&mut events, records, which, ask, (!is_open).then_some(told));
        }
    }
    let names = Names { inodes: numbers.inodes };
    (names, events.0, events.1)
}

/// What an operation asks of names, and what it was told; `told` where its answer says no more. `None`: nothing.
fn name_event(
    record: &Record,
    told: names_model::Told,
    numbers: &mut Numbers,
) -> Option<(names_model::Ask, names_model::Told)> {
    use names_model::{Ask, Told};
    let answer = record.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
    let id = |inode: &InodeRef| numbers.get(inode);
    let ask = match (&record.operation, answer) {
        (&Operation::Lookup { ref dir, name }, answer) => {
            let told = match answer {
                Some(Answer::Inode(inode, _)) => Told::Found(id(inode)),
                _ => told,
            };
            return Some((Ask::Lookup { dir: id(dir), name }, told));
        }
        (&Operation::Create { ref dir, name, kind }, answer) => {
            let dir = id(dir);
            let id = match answer {
                Some(Answer::Inode(inode, _)) => id(inode),
                _ if record.returned.is_none() => numbers.add(kind == FileKind::Directory, Origin::Placeholder),
                _ => names_model::ROOT, // nothing was made
            };
            Ask::Create { dir, name, id }
        }
        (&Operation::Unlink { ref dir, name }, _) => Ask::Unlink { dir: id(dir), name },
        (&Operation::Rmdir { ref dir, name }, _) => Ask::Rmdir { dir: id(dir), name },
        (
            &Operation::Rename {
                ref old_dir,
                old,
                ref new_dir,
                new,
                mode,
            },
            _,
        ) => Ask::Rename {
            old_dir: id(old_dir),
            old,
            new_dir: id(new_dir),
            new,
            mode,
        },
        (
            &Operation::Link {
                ref inode,
                ref dir,
                name,
            },
            _,
        ) => Ask::Link {
            id: id(inode),
            dir: id(dir),
            name,
        },
        (Operation::ReadDir { dir }, answer) => {
            let told = match answer {
                Some(Answer::Entries(entries)) => {
                    Told::Entries(entries.iter().map(|(name, inode, _)| (*name, id(inode))).collect())
                }
                _ => told,
            };
            return Some((Ask::List { dir: id(dir) }, told));
        }
        (Operation::GetAttr { inode }, Some(Answer::Attr { nlink, .. })) => {
            return Some((Ask::Links { id: id(inode) }, Told::Links(*nlink)));
        }
        (operation, _) => match &record.outcome {
            Some(Err(FsError::Stale | FsError::NotFound)) => Ask::Use {
                id: id(&about(operation)?),
            },
            _ => return None,
        },
    };
    Some((ask, told))
}

/// The inode that an operation is about, whatever its name.
fn about(operation: &Operation) -> Option<InodeRef> {
    match operation {
        Operation::Open { inode }
        | Operation::Read { inode, .. }
        | Operation::Write { inode, .. }
        | Operation::Append { inode, .. }
        | Operation::Truncate { inode, .. }
        | Operation::Fallocate { inode, .. }
        | Operation::GetAttr { inode }
        | Operation::SetMode { inode, .. }
        | Operation::SetXattr { inode, .. }
        | Operation::GetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. }
        | Operation::ListXattr { inode } => Some(*inode),
        _ => None,
    }
}

/// Of each file the history of its bytes.
fn of_contents(records: &[Record]) -> BTreeMap<InodeRef, Events<contents_model::Ask, contents_model::Told>> {
    use contents_model::{Ask, Told};
    let mut all = BTreeMap::new();
    for (which, record) in records.iter().enumerate() {
        let is_open = record.returned.is_none();
        if is_open && record.operation.only_looks() {
            continue;
        }
        let told = match &record.outcome {
            _ if is_open => None,
            Some(Ok(Answer::Bytes(bytes))) => Some(Told::Bytes(bytes.clone())),
            Some(Ok(Answer::At(at))) => Some(Told::At(*at)),
            Some(Ok(Answer::Attr { size, .. })) => Some(Told::Size(*size)),
            Some(Ok(_)) => Some(Told::Done),
            Some(Err(_)) | None => continue, // nothing was done
        };
        let Some(inode) = about(&record.operation) else {
            continue;
        };
        let ask = match &record.operation {
            Operation::Read { offset, len, .. } => Ask::Read {
                offset: *offset,
                len: *len,
            },
            Operation::Write { offset, len, tag, .. } => Ask::Write {
                offset: *offset,
                len: *len,
                tag: *tag,
            },
            Operation::Append { len, tag, .. } => Ask::Append { len: *len, tag: *tag },
            Operation::Truncate { size, .. } => Ask::Truncate { size: *size },
            Operation::Fallocate { mode, offset, len, .. } => match mode {
                FallocateMode::PunchHole => Ask::Zero {
                    offset: *offset,
                    len: *len,
                    extend: false,
                },
                FallocateMode::ZeroRange { keep_size } => Ask::Zero {
                    offset: *offset,
                    len: *len,
                    extend: !keep_size,
                },
            },
            Operation::GetAttr { .. } => match &record.outcome {
                Some(Ok(Answer::Attr {
                    kind: FileKind::File, ..
                })) => Ask::Size,
                _ => continue,
            },
            _ => continue,
        };
        let events = all.entry(inode).or_insert_with(|| (Vec::new(), Vec::new()));
        push(events, records, which, ask, told);
    }
    all
}

/// Of each inode the history of its attributes, and its type.
type OfAttributes = BTreeMap<InodeRef, (FileKind, Vec<Event<attributes::Ask, attributes::Told>>, Vec<usize>)>;

fn of_attributes(records: &[Record]) -> OfAttributes {
    use attributes::{Ask, Told};
    let numbers = number(records);
    let mut all: BTreeMap<InodeRef, Events<Ask, Told>> = BTreeMap::new();
    for (which, record) in records.iter().enumerate() {
        let is_open = record.returned.is_none();
        if is_open && record.operation.only_looks() {
            continue;
        }
        let told = match &record.outcome {
            _ if is_open => None,
            Some(Ok(Answer::Attr { mode, .. })) => Some(Told::Mode(*mode)),
            Some(Ok(Answer::Value(value))) => Some(Told::Value(*value)),
            Some(Ok(Answer::Names(names))) => Some(Told::Names(names.clone())),
            Some(Ok(_)) => Some(Told::Done),
            Some(Err(error @ (FsError::NoAttribute | FsError::Exists))) => Some(Told::Refused(error.clone())),
            Some(Err(_)) | None => continue, // nothing was done
        };
        let (inode, ask) = match &record.operation {
            Operation::SetMode { inode, mode } => (inode, Ask::SetMode(*mode)),
            Operation::GetAttr { inode } if *inode != ROOT => (inode, Ask::Mode),
            Operation::SetXattr {
                inode,
                name,
                value,
                mode,
            } => (
                inode,
                Ask::Set {
                    name: *name,
                    value: *value,
                    mode: *mode,
                },
            ),
            Operation::GetXattr { inode, name } => (inode, Ask::Get(*name)),
            Operation::RemoveXattr { inode, name } => (inode, Ask::Remove(*name)),
            Operation::ListXattr { inode } => (inode, Ask::List),
            _ => continue,
        };
        let events = all.entry(*inode).or_default();
        push(events, records, which, ask, told);
    }
    all.into_iter()
        .map(|(inode, (events, which))| {
            let is_directory = numbers.inodes[usize::from(numbers.get(&inode))].is_directory;
            let kind = if is_directory {
                FileKind::Directory
            } else {
                FileKind::File
            };
            (inode, (kind, events, which))
        })
        .collect()
}

const _: () = assert!(
    EAGER_MAX == 4096,
    "the header of `contents` says what is written in one piece"
);
