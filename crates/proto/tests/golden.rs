//! Messages of the present protocol, kept: one of every request, reply and error in `golden`, as they were encoded when the
//! protocol got its version. Whoever changes what the bytes mean without raising the version finds other messages in them.
//!
//! A line is the bytes, hexadecimal, and what they say.

use polvo_format::{Epoch, SessionId};
use polvo_proto::{Call, Cred, DecodeError, FsError, PROTOCOL_VERSION, Reply, Request, decode_answer, encode_answer};
use std::collections::BTreeSet;
use std::path::PathBuf;

const CURE: &str =
    "if the protocol has changed, raise PROTOCOL_VERSION and run: BLESS=1 cargo test -p polvo-proto --test golden";
/// How often random bytes are tried.
const ATTEMPTS: u32 = 5000;
const LONGEST: usize = 200;

/// What bytes say, and what is written when it is said again.
type Said = (String, Vec<u8>);

/// One kind of messages.
struct Kind {
    /// What they begin with: all up to the number of the variant.
    head: Vec<u8>,
    read: fn(&[u8]) -> Result<Said, DecodeError>,
}

fn requests() -> Kind {
    let call = Call {
        session: SessionId(7),
        request_id: 9,
        again: false,
        epoch: Epoch(1),
        cred: Cred::User {
            uid: 10,
            gid: 20,
            groups: vec![30],
        },
        request: Request::Detach,
    };
    Kind {
        head: without_last(call.encode()),
        read: |bytes| Call::decode(bytes).map(|call| (format!("{call:?}"), call.encode())),
    }
}

fn replies() -> Kind {
    answers(encode_answer(&Ok(Reply::Done)))
}

fn errors() -> Kind {
    answers(encode_answer(&Err(FsError::NotFound)))
}

fn answers(one: Vec<u8>) -> Kind {
    Kind {
        head: without_last(one),
        read: |bytes| decode_answer(bytes).map(|answer| (format!("{answer:?}"), encode_answer(&answer))),
    }
}

fn without_last(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.pop();
    bytes
}

impl Kind {
    /// A message of a variant: of those that random bytes begin with, the one with the most different bytes, in which few values
    /// are equal and few lists empty. `None`: there is no such variant.
    fn message(&self, variant: u8) -> Option<Vec<u8>> {
        let mut random = u64::from(variant);
        let attempt = |_| {
            let mut bytes = self.head.clone();
            bytes.push(variant);
            for _ in 0..LONGEST {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // flags, numbers of variants and lengths are small; by the others values differ from each other
                let byte = (random >> 40) as u8;
                bytes.push(byte % [2, 2, 2, 4, 0x80][(random >> 60) as usize % 5]);
            }
            // the decoder says how much it has left over
            let DecodeError(why) = (self.read)(&bytes).err()?;
            let (left, _) = why.split_once(" bytes after the end")?;
            bytes.truncate(bytes.len() - left.parse::<usize>().ok()?);
            // sets are written in order, however they were read
            let (_, again) = (self.read)(&bytes).ok()?;
            (again == bytes).then_some(bytes)
        };
        (0..ATTEMPTS)
            .filter_map(attempt)
            .max_by_key(|bytes| bytes.iter().collect::<BTreeSet<_>>().len())
    }

    /// A line for each variant: the bytes and what they say.
    fn lines(&self) -> Vec<String> {
        let messages = (0..0x80).map_while(|variant| self.message(variant));
        messages
            .map(|bytes| {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{hex} {}", (self.read)(&bytes).expect("it was read before").0)
            })
            .collect()
    }

    fn compare(&self, file: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(file);
        let first = format!("protocol {PROTOCOL_VERSION}");
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, first.clone() + "\n" + &self.lines().join("\n") + "\n").unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}; {CURE}", path.display()));
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(&*first), "{}; {CURE}", path.display());
        let mut count = 0;
        for line in lines {
            let (hex, said) = line.split_once(' ').expect("bytes and what they say");
            let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).expect("a byte");
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            let (says, again) = (self.read)(&bytes).unwrap_or_else(|e| panic!("{said}: {e}; {CURE}"));
            assert_eq!(says, said, "{CURE}");
            assert_eq!(again, bytes, "{said}; {CURE}");
            assert_eq!(bytes[self.head.len()], count, "{said}; {CURE}");
            count += 1;
        }
        assert!(
            self.message(count).is_none(),
            "there is a new message, number {count}; {CURE}"
        );
    }
}

#[test]
fn requests_that_were_kept_say_the_same() {
    requests().compare("requests");
}

#[test]
fn replies_that_were_kept_say_the_same() {
    replies().compare("replies");
}

#[test]
fn errors_that_were_kept_say_the_same() {
    errors().compare("errors");
}
