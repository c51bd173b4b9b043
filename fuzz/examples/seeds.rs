//! Writes the first inputs of the corpus: well-formed structures for the fuzzer to spoil.
//!
//!     cd fuzz && RUSTFLAGS='--cfg fuzzing' cargo run --example seeds

use polvo_consensus::Voters;
use polvo_consensus::register::Voter;
use polvo_format::*;
use polvo_pmem::sim::LoseAll;
use polvo_proto::{
    Call, ClusterMap, Cred, FsError, InodeRef, KeptMap, NodeInfo, RegionInfo, Replica, ReplicaRole, Reply, Request,
    Usage, WriteAt, encode_answer,
};
use std::path::Path;

#[path = "../../crates/region/tests/harness/mod.rs"]
mod harness;
use harness::world::{Shape, World, new_file};

fn keep(target: &str, name: &str, bytes: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&dir).expect("the corpus can be written");
    std::fs::write(dir.join(name), bytes).expect("the corpus can be written");
}

/// A pool with files of all sizes: superblock, inodes, logs.
fn pools() {
    let region = RegionId(0);
    let mut w = World::new(Shape::small());
    let root = w.root();
    for n in 0..30u32 {
        let file = w
            .create(
                root,
                format!("file {n}").as_bytes(),
                new_file(FileKind::File, 0o644),
                region,
            )
            .unwrap();
        w.write(file, WriteAt::Offset(0), &vec![7; 100 * n as usize]).unwrap();
        w.commit(file, &[(50_000, vec![1; 5000])], WriteAt::Offset(0)).unwrap();
        w.set_xattr(file, b"user.name", &[6; 5000], polvo_proto::XattrMode::Any)
            .unwrap();
    }
    w.unlink(root, b"file 3").unwrap();
    let image = w.pools[0].pmem().sim().unwrap().image(&mut LoseAll);
    let mut page = vec![0; PAGE];
    image.read(0, &mut page);
    keep("superblock", "formatted", &page[..SUPERBLOCK_USED]);
    let (mut inodes, mut logs) = (0, 0);
    for at in (0..image.len()).step_by(PAGE) {
        image.read(at, &mut page);
        for slot in page.chunks(INODE_SIZE) {
            if slot[..LINE] != [0; LINE] && inodes < 20 && InodeView::decode(slot, root.ino).is_ok() {
                keep("inode", &format!("slot-{inodes}"), slot);
                keep("log_entries", &format!("units-{inodes}"), &slot[2 * LINE..]);
                inodes += 1;
            }
        }
        if LogPage::decode(&page).is_ok() && logs < 5 {
            keep("log_entries", &format!("page-{logs}"), &page[LINE..]);
            logs += 1;
        }
    }
}

fn redo_record() {
    let mut record = Vec::new();
    let gpa = |region, offset| Gpa::new(RegionId(region), RegionOffset(offset));
    let mut redo = RedoEncoder::new(&mut record, 3, 8, RegionId(0), TxnId::new(RegionId(0), 5));
    redo.local(gpa(0, 4096), b"eight by");
    redo.collected(
        RegionId(1),
        [(gpa(1, 8192), &b"elsewhere"[..])].into_iter(),
        &[gpa(1, 56)],
    );
    redo.prepared(RegionId(2));
    keep("redo_record", "local-and-remote", redo.finish());
}

/// What a node keeps of the cluster map.
fn register() {
    let node = NodeId(1);
    let known = ClusterMap {
        cluster: [1; 16],
        epoch: Epoch(3),
        nodes: vec![NodeInfo {
            id: node,
            host: "host".into(),
            addresses: vec!["tcp://127.0.0.1:7000".into()],
        }],
        regions: vec![RegionInfo {
            id: RegionId(0),
            epoch: Epoch(1),
            replicas: vec![Replica {
                node,
                role: ReplicaRole::Primary,
            }],
        }],
        voters: Voters::new([node]),
    };
    let kept = KeptMap {
        proposed: 5,
        voter: Voter::of_first(known.clone()),
        known,
    };
    let value = kept.encode();
    keep("register", "value", &value);
    let slot = RegisterSlot {
        written: 3,
        value: &value,
    };
    keep("register", "copy", &slot.encode(&[7; 16]));
}

/// What copies of a region are told of some changes.
fn mirror_records() {
    let mut w = World::new(Shape::small());
    let (root, region) = (w.root(), RegionId(0));
    w.region(region).capture(Lsn(0));
    let mut records = Vec::new();
    let mut kept = 0;
    let mut keep_next = |w: &mut World| {
        w.region(region).take_records(&mut records);
        MirrorRecord::seal(&mut records);
        keep("mirror_record", &format!("records-{kept}"), &records);
        kept += 1;
    };
    let file = w
        .create(root, b"file", new_file(FileKind::File, 0o644), region)
        .unwrap();
    keep_next(&mut w);
    w.write(file, WriteAt::Offset(0), &[7; 3000]).unwrap();
    keep_next(&mut w);
    w.commit(file, &[(50_000, vec![1; 5000])], WriteAt::Offset(0)).unwrap();
    keep_next(&mut w);
    w.unlink(root, b"file").unwrap();
    w.region(region).release_segments(|_| ());
    keep_next(&mut w);
}

/// Requests and answers.
fn rpc() {
    let inode = InodeRef {
        ino: Ino::ROOT,
        generation: Generation(1),
    };
    let requests = [
        Request::Usage,
        Request::Map,
        Request::Detach,
        Request::Segments {
            region: RegionId(0),
            from: 0,
        },
        Request::Open { inode },
        Request::GetAttr {
            ino: inode.ino,
            generation: Some(inode.generation),
        },
    ];
    for (n, request) in requests.into_iter().enumerate() {
        let call = Call {
            session: SessionId(7),
            epoch: Epoch(1),
            again: false,
            request_id: 9,
            cred: Cred::Kernel,
            request,
        };
        keep("rpc_request", &format!("request-{n}"), &call.encode());
    }
    let answers = [
        Ok(Reply::Done),
        Ok(Reply::Usage(Usage::default())),
        Err(FsError::Stale),
        Err(FsError::Io("why".into())),
    ];
    for (n, answer) in answers.iter().enumerate() {
        keep("rpc_answer", &format!("answer-{n}"), &encode_answer(answer));
    }
}

fn tcp_frames() {
    let key = 1 << 20; // the first one when fuzzed
    let mut all = Vec::new();
    for opcode in [1, 2, 3, 4, 5, 6, 7, 16, 17, 18] {
        let payload: &[u8] = if matches!(opcode, 2 | 3 | 7 | 16) {
            b"sixteen bytes..."
        } else {
            b""
        };
        let op = u32::from(opcode < 16) * 7;
        let frame = [
            &0x5ab0u16.to_le_bytes()[..],
            &[opcode, 1],
            &(payload.len() as u32).to_le_bytes(),
            &op.to_le_bytes(),
        ];
        let words = [key, 64, 16, 0u64];
        let rest: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let frame = [&frame.concat()[..], &0u32.to_le_bytes(), &rest, payload].concat();
        keep("tcp_frames", &format!("opcode-{opcode}"), &frame);
        all.extend(frame);
    }
    keep("tcp_frames", "all", &all);
}

/// One of each opcode.
fn fuse_requests() {
    for opcode in 1..54u32 {
        // room for any struct, then names, with zeros that say that no data follows
        let arguments = [&[0; 88][..], b"name\0other\0"].concat();
        let used = match opcode {
            1 | 6 | 10 | 11 | 24 => &arguments[88..],
            13 | 9 | 12 | 21 | 22 => &arguments[80..],
            8 | 35 | 45 => &arguments[72..],
            _ => &arguments[..],
        };
        let len = 40 + used.len() as u32;
        let header = [len.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        keep(
            "fuse_request",
            &format!("opcode-{opcode}"),
            &[&header, &[2; 32][..], used].concat(),
        );
    }
}

fn main() {
    pools();
    redo_record();
    register();
    mirror_records();
    rpc();
    tcp_frames();
    fuse_requests();
    keep(
        "configuration",
        "template",
        polvo_cli::config_template::TEMPLATE.as_bytes(),
    );
    keep("configuration", "address", b"polvo://host:7777/path");
}
