//! What the bytes of one file are.
//!
//! Promised (ARCHITECTURE.md, *Life of a read*, *Life of a write*; `LocalClient::read` and `write`) and checked here, no
//! more and no less: a write or append of up to 8 MiB, a change of size and a hole are each one entry batch in the file's
//! log, made visible by one 8-byte tail; a read of up to 1 MiB sees the file as of one tail, several pages included. So
//! operations on one file are linearizable as a whole, not page by page. Where space runs short a write of more than
//! 4 KiB may be done in pieces: in runs with small pools shared files get none that large. Larger reads are no unit
//! and are not made.

use crate::linearizability::Model;
use crate::pattern::{Tag, byte};

/// Bytes in a row from one write (tag 0: zeros).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Run {
    len: u64,
    tag: Tag,
    /// Where in the write they come from.
    from: u64,
}

/// The bytes of a file, as runs of writes in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Contents {
    runs: Vec<Run>,
}

/// What is asked of a file's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Ask {
    Read { offset: u64, len: u64 },
    Write { offset: u64, len: u64, tag: Tag },
    Append { len: u64, tag: Tag },
    Truncate { size: u64 },
    Zero { offset: u64, len: u64, extend: bool },
    Size,
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are what they are called
pub enum Told {
    Done,
    Bytes(Vec<u8>),
    At(u64),
    Size(u64),
}

impl Contents {
    fn size(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    fn push(runs: &mut Vec<Run>, run: Run) {
        if run.len == 0 {
            return;
        }
        let run = if run.tag == 0 { Run { from: 0, ..run } } else { run };
        match runs.last_mut() {
            Some(last) if last.tag == run.tag && (run.tag == 0 || last.from + last.len == run.from) => {
                last.len += run.len;
            }
            _ => runs.push(run),
        }
    }

    /// Replaces `offset..offset + len`, which may lie beyond the end.
    fn put(&self, offset: u64, len: u64, tag: Tag) -> Contents {
        let mut runs = Vec::with_capacity(self.runs.len() + 3);
        let mut at = 0;
        let end = offset + len;
        let size = self.size();
        let hole = |runs: &mut Vec<Run>, len| Self::push(runs, Run { len, tag: 0, from: 0 });
        for run in &self.runs {
            let before = offset.saturating_sub(at).min(run.len);
            Self::push(&mut runs, Run { len: before, ..*run });
            at += run.len;
        }
        if offset > size {
            hole(&mut runs, offset - size);
        }
        Self::push(&mut runs, Run { len, tag, from: 0 });
        let mut at = 0;
        for run in &self.runs {
            let skip = end.saturating_sub(at).min(run.len);
            let rest = Run {
                len: run.len - skip,
                tag: run.tag,
                from: run.from + skip,
            };
            Self::push(&mut runs, rest);
            at += run.len;
        }
        Contents { runs }
    }

    fn truncated(&self, size: u64) -> Contents {
        let now = self.size();
        if size >= now {
            let mut runs = self.runs.clone();
            let len = size - now;
            Self::push(&mut runs, Run { len, tag: 0, from: 0 });
            return Contents { runs };
        }
        let mut runs = Vec::new();
        let mut left = size;
        for run in &self.runs {
            let len = run.len.min(left);
            Self::push(&mut runs, Run { len, ..*run });
            left -= len;
        }
        Contents { runs }
    }

    /// True when a read there gives these bytes.
    fn reads(&self, offset: u64, len: u64, bytes: &[u8]) -> bool {
        let expected = self.size().saturating_sub(offset).min(len);
        if bytes.len() as u64 != expected {
            return false;
        }
        let mut at = 0;
        for run in &self.runs {
            let (start, end) = (at.max(offset), (at + run.len).min(offset + expected));
            if start < end {
                let seen = &bytes[(start - offset) as usize..(end - offset) as usize];
                let from = run.from + (start - at);
                let mut expected = (from..).map(|n| byte(run.tag, n));
                if !seen.iter().all(|byte| Some(*byte) == expected.next()) {
                    return false;
                }
            }
            at += run.len;
        }
        true
    }
}

/// Why a read is none of this state: where it differs first, and what is there instead.
pub fn difference(state: &Contents, offset: u64, len: u64, bytes: &[u8]) -> String {
    let expected = state.size().saturating_sub(offset).min(len);
    if bytes.len() as u64 != expected {
        return format!("{} bytes were read, {expected} are there", bytes.len());
    }
    let is_so = |n: &u64| state.reads(offset, *n, &bytes[..*n as usize]);
    let same = (0..expected).rev().find(is_so).unwrap_or(0);
    let seen = &bytes[same as usize..];
    let shown = &seen[..seen.len().min(16)];
    format!(
        "differs from offset {} on; there is {shown:02x?}{}",
        offset + same,
        origin(seen)
    )
}

/// Which write bytes may come from.
fn origin(seen: &[u8]) -> String {
    let Some(word) = seen.first_chunk::<16>() else {
        return String::new();
    };
    let places = (1..2000).flat_map(|tag| (0..20_000).map(move |from| (tag, from)));
    for (tag, from) in places {
        if (from..).zip(word).all(|(at, seen)| byte(tag, at) == *seen) {
            return format!(", as byte {from} of tag {tag}");
        }
    }
    String::new()
}

/// One file, empty when it is made.
pub struct File;

impl Model for File {
    type State = Contents;
    type Op = Ask;
    type Answer = Told;

    fn start(&self) -> Contents {
        Contents::default()
    }

    fn step(&self, state: &Contents, op: &Ask, answer: Option<&Told>) -> Option<Contents> {
        match (op, answer) {
            (Ask::Read { offset, len }, Some(Told::Bytes(bytes))) => {
                state.reads(*offset, *len, bytes).then(|| state.clone())
            }
            (Ask::Write { offset, len, tag }, None | Some(Told::Done)) => Some(state.put(*offset, *len, *tag)),
            (Ask::Append { len, tag }, None) => Some(state.put(state.size(), *len, *tag)),
            (Ask::Append { len, tag }, Some(Told::At(at))) => (*at == state.size()).then(|| state.put(*at, *len, *tag)),
            (Ask::Truncate { size }, None | Some(Told::Done)) => Some(state.truncated(*size)),
            (Ask::Zero { offset, len, extend }, None | Some(Told::Done)) => {
                let end = if *extend {
                    offset + len
                } else {
                    state.size().min(offset + len)
                };
                Some(match end.checked_sub(*offset) {
                    Some(len) if len > 0 => state.put(*offset, len, 0),
                    _ => state.clone(),
                })
            }
            (Ask::Size, Some(Told::Size(size))) => (*size == state.size()).then(|| state.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linearizability::{Event, Verdict, check};
    use crate::rng::Rng;

    #[test]
    fn runs_equal_a_byte_array() {
        let mut rng = Rng::new(1, 1);
        let (mut state, mut bytes) = (Contents::default(), Vec::<u8>::new());
        for tag in 1..3000u32 {
            let (offset, len) = (rng.below(300), rng.between(1, 90));
            let op = match rng.below(5) {
                0 => Ask::Truncate { size: offset },
                1 => Ask::Zero {
                    offset,
                    len,
                    extend: rng.percent(50),
                },
                2 => Ask::Append { len, tag },
                _ => Ask::Write { offset, len, tag },
            };
            let mut write = |offset: u64, new: Vec<u8>| {
                let end = offset as usize + new.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].copy_from_slice(&new);
            };
            match op {
                Ask::Truncate { size } => bytes.resize(size as usize, 0),
                Ask::Zero {
                    offset,
                    len,
                    extend: true,
                } => write(offset, vec![0; len as usize]),
                Ask::Zero { offset, len, .. } => {
                    let end = bytes.len().min((offset + len) as usize);
                    let start = end.min(offset as usize);
                    bytes[start..end].fill(0);
                }
                Ask::Append { len, tag } => bytes.extend(crate::pattern::bytes(tag, len)),
                Ask::Write { offset, len, tag } => write(offset, crate::pattern::bytes(tag, len)),
                Ask::Read { .. } | Ask::Size => {}
            }
            state = File.step(&state, &op, None).expect("all of these succeed");
            assert_eq!(state.size(), bytes.len() as u64);
            assert!(state.reads(0, 1000, &bytes), "{tag}: {op:?}");
            let (offset, len) = (rng.below(300), rng.between(1, 90));
            let start = bytes.len().min(offset as usize);
            let mut part = bytes[start..bytes.len().min((offset + len) as usize)].to_vec();
            assert!(state.reads(offset, len, &part));
            if let Some(byte) = part.last_mut() {
                *byte ^= 1;
                assert!(!state.reads(offset, len, &part));
            }
        }
    }

    #[test]
    fn parts_of_two_writes_are_no_read() {
        let write = |tag, invoked, returned| Event {
            op: Ask::Write {
                offset: 0,
                len: 8000,
                tag,
            },
            invoked,
            returned: Some((returned, Told::Done)),
        };
        let read = |bytes: Vec<u8>| Event {
            op: Ask::Read { offset: 0, len: 8000 },
            invoked: 3,
            returned: Some((4, Told::Bytes(bytes))),
        };
        let both = |bytes| check(&File, &[write(1, 1, 10), write(2, 2, 11), read(bytes)], 1000);
        let (first, second) = (crate::pattern::bytes(1, 8000), crate::pattern::bytes(2, 8000));
        assert_eq!(both(first.clone()), Verdict::Linearizable);
        assert_eq!(both(second.clone()), Verdict::Linearizable);
        let torn = [&first[..4096], &second[4096..]].concat();
        assert!(matches!(both(torn), Verdict::Impossible { .. }));
    }
}
