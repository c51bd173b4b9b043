//! The operations, and how they are drawn.

use polvo_format::PAGE;
use polvo_proto::*;
use proptest::option::of as some;
use proptest::prelude::*;
use proptest::sample::Index;

/// An operation; what it works on is chosen among what there is when it runs.
#[derive(Clone, Debug)]
pub enum Op {
    Create {
        dir: Index,
        name: u8,
        kind: u8,
        region: u16,
    },
    Unnamed {
        dir: Index,
    },
    Link {
        file: Index,
        dir: Index,
        name: u8,
    },
    Unlink {
        entry: Index,
    },
    Rmdir {
        entry: Index,
    },
    Rename {
        entry: Index,
        dir: Index,
        name: u8,
    },
    RenameOver {
        entry: Index,
        other: Index,
    },
    Exchange {
        entry: Index,
        other: Index,
    },
    SetAttr {
        inode: Index,
        set: SetAttr,
    },
    Write {
        file: Index,
        at: WriteAt,
        len: usize,
    },
    Commit {
        file: Index,
        runs: Vec<(u64, usize)>,
        from: WriteAt,
    },
    Truncate {
        file: Index,
        size: u64,
    },
    Fallocate {
        file: Index,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    SetXattr {
        inode: Index,
        name: u8,
        len: usize,
        mode: XattrMode,
    },
    RemoveXattr {
        inode: Index,
        name: u8,
    },
    Placement {
        dir: Index,
        value: Placement,
    },
    Open {
        file: Index,
    },
    Release {
        file: Index,
    },
    CollectGarbage,
    Tick,
    Restart,
    Verify,
}

pub fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..20_000u64,
        3 => (0..20u64).prop_map(|page| page * PAGE as u64),
        2 => 0..200_000u64,
        1 => 0..1u64 << 45,
    ]
}

pub fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..200usize, 3 => 1..9000usize, 2 => (1..5usize).prop_map(|pages| pages * PAGE), 1 => 1..60_000usize]
}

pub fn op() -> impl Strategy<Value = Op> {
    let i = any::<Index>;
    let time = prop_oneof![Just(TimeChange::Now), any::<i64>().prop_map(TimeChange::To)];
    let set = (
        some((0..0o10000u32).prop_map(|mode| mode & !0o2000)),
        some(any::<u32>()),
        some(any::<u32>()),
        some(time.clone()),
        some(time),
    )
        .prop_map(|(mode, uid, gid, atime, mtime)| SetAttr {
            mode,
            uid,
            gid,
            size: None,
            atime,
            mtime,
        });
    let mode = prop_oneof![
        Just(FallocateMode::PunchHole),
        any::<bool>().prop_map(|keep_size| FallocateMode::ZeroRange { keep_size }),
    ];
    let xattr_mode =
        prop_oneof![4 => Just(XattrMode::Any), 1 => Just(XattrMode::Create), 1 => Just(XattrMode::Replace)];
    let xattr_len = prop_oneof![4 => 0..4000usize, 1 => 0..=XATTR_VALUE_MAX];
    let runs = prop::collection::vec((0..30_000u64, len()), 1..4).prop_map(|mut runs| {
        // ascending, not overlapping: gaps become offsets
        let mut at = 0;
        for (offset, len) in &mut runs {
            *offset += at;
            at = *offset + *len as u64;
        }
        runs
    });
    prop_oneof![
        10 => (i(), any::<u8>(), 0..12u8, 0..2u16)
            .prop_map(|(dir, name, kind, region)| Op::Create { dir, name, kind, region }),
        1 => i().prop_map(|dir| Op::Unnamed { dir }),
        3 => (i(), i(), any::<u8>()).prop_map(|(file, dir, name)| Op::Link { file, dir, name }),
        5 => i().prop_map(|entry| Op::Unlink { entry }),
        3 => i().prop_map(|entry| Op::Rmdir { entry }),
        4 => (i(), i(), any::<u8>()).prop_map(|(entry, dir, name)| Op::Rename { entry, dir, name }),
        3 => (i(), i()).prop_map(|(entry, other)| Op::RenameOver { entry, other }),
        2 => (i(), i()).prop_map(|(entry, other)| Op::Exchange { entry, other }),
        3 => (i(), set).prop_map(|(inode, set)| Op::SetAttr { inode, set }),
        8 => (i(), some(offset()), len())
            .prop_map(|(file, offset, len)| Op::Write { file, at: offset.map_or(WriteAt::End, WriteAt::Offset), len }),
        8 => (i(), runs, any::<bool>())
            .prop_map(|(file, runs, append)| Op::Commit { file, runs, from: WriteAt::from_wire(0, append) }),
        4 => (i(), offset()).prop_map(|(file, size)| Op::Truncate { file, size }),
        4 => (i(), mode, offset(), 1..100_000u64)
            .prop_map(|(file, mode, offset, len)| Op::Fallocate { file, mode, offset, len }),
        3 => (i(), 0..6u8, xattr_len, xattr_mode)
            .prop_map(|(inode, name, len, mode)| Op::SetXattr { inode, name, len, mode }),
        1 => (i(), 0..6u8).prop_map(|(inode, name)| Op::RemoveXattr { inode, name }),
        1 => (i(), any::<bool>(), proptest::option::of((1..=RegionSet::REPLICAS_MAX, 0..3_usize)))
            .prop_map(|(dir, local, set)| {
                let set = set.map(|(replicas, mode)| RegionSet { replicas, durability: Durability::ALL[mode] });
                Op::Placement { dir, value: Placement { local, set } }
            }),
        2 => i().prop_map(|file| Op::Open { file }),
        2 => i().prop_map(|file| Op::Release { file }),
        1 => Just(Op::CollectGarbage),
        2 => Just(Op::Tick),
        1 => Just(Op::Restart),
        2 => Just(Op::Verify),
    ]
}

/// Names with collisions among them, of very different lengths.
pub fn name(n: u8) -> Vec<u8> {
    let n = n % 16;
    let len = [1, 3, 10, 60, 255][usize::from(n) % 5];
    let mut name = vec![b'a' + n; len];
    name[0] = [0x80, b'.', b' ', 0xff, b'\n'][usize::from(n) % 5];
    if len == 1 {
        name[0] = b'a' + n;
    }
    name
}

pub fn bytes(seed: i64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed as u64).wrapping_mul(i as u64 + 7).wrapping_add(i as u64 >> 5) as u8 | 1)
        .collect()
}
