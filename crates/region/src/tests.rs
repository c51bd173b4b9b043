//! Behaviour of a region as a whole, where it is not covered by the model and the power cuts in `tests/`.

use crate::store::Urgency;
use crate::testing::*;
use crate::{NewData, Region, RegionError};
use parking_lot::Mutex;
use polvo_format::{FileKind, INODE_SIZE, Ino, LogEntries, Lsn, Origin, PAGE, SessionId, Tail, TxnId};
use polvo_pmem::sim::LoseAll;
use polvo_proto::*;
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn a_collected_change_shows_when_it_is_dispatched() {
    let mut r = region(4);
    let dir = make(&mut r, ROOT, b"dir", FileKind::Directory).unwrap();
    let intents = [new_inode(FileKind::File), add_name(dir, b"file", FileKind::File)];
    let collected = r.collect(txn(5), &intents, NOW).unwrap();
    let file = collected.outcomes[0].attr;
    let file = InodeRef {
        ino: file.ino,
        generation: file.generation,
    };
    assert!(matches!(r.lookup(dir, b"file"), Err(RegionError::Locked { .. })));
    assert!(matches!(r.attr(file.ino, None), Err(RegionError::Locked { .. })));
    assert!(matches!(
        r.collect(txn(6), &intents[1..], NOW),
        Err(RegionError::Fs(_) | RegionError::Locked { .. })
    ));
    r.open(SESSION, file).unwrap();
    assert_eq!(r.reap(), [txn(5)]);
    assert_eq!(findings(&mut r), [""; 0]);

    dispatch(&r, txn(5), &collected);
    let (found, tail) = r.lookup(dir, b"file").unwrap();
    assert_eq!((found.target, tail), (file, collected.outcomes[1].tail));
    assert_eq!(
        r.attr(file.ino, Some(file.generation)).unwrap().0,
        collected.outcomes[0].attr
    );
    assert_eq!(r.reap(), []);
    assert_eq!(findings(&mut r), [""; 0]);
}

#[test]
fn a_collected_change_that_is_given_up_leaves_nothing() {
    let mut r = region(4);
    let before = r.usage();
    let long_link = NewFile {
        target: vec![b'x'; 4095],
        umask: 0,
        xattrs: Vec::new(),
        ..new_file(FileKind::Symlink)
    };
    let long_link = Intent::NewInode {
        file: long_link,
        parent: ROOT,
        placement: Placement::default(),
        unnamed: false,
    };
    let intents = [long_link, add_name(ROOT, &[b'n'; 255], FileKind::Symlink)];
    for n in 0..3 {
        let collected = r.collect(txn(5), &intents, NOW).unwrap();
        let made = collected.outcomes[0].attr;
        let made = InodeRef {
            ino: made.ino,
            generation: made.generation,
        };
        r.open(SESSION, made).unwrap();
        if n == 1 {
            // the coordinator gives up on its own
            for lock in &collected.locks {
                r.store.pool.pmem().cas_u64(r.store.at(lock.offset().0), txn(5).0, 0);
            }
        } else {
            r.abort(txn(5));
        }
        assert!(r.attr(made.ino, None).is_err());
        assert_eq!(r.reap(), []);
        assert_eq!(findings(&mut r), [""; 0]);
        r.release(SESSION, made);
    }
    r.set_tick(9, 9);
    assert_eq!(r.usage(), before);
    assert!(r.lookup(ROOT, &[b'n'; 255]).is_err());
}

#[test]
fn what_is_held_stays_held_over_a_restart() {
    let mut r = region(4);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let intents = [new_inode(FileKind::File), Intent::AddLink { inode: file }];
    let collected = r.collect(txn(5), &intents, NOW).unwrap();
    let made = collected.outcomes[0].attr.ino;

    for end in ["dispatched", "aborted"] {
        let (mut again, recovery) = recovered(&r);
        assert_eq!(recovery.held_by, [txn(5)]);
        assert!(matches!(again.attr(file.ino, None), Err(RegionError::Locked { .. })));
        assert!(matches!(again.attr(made, None), Err(RegionError::Locked { .. })));
        if end == "dispatched" {
            dispatch(&again, txn(5), &collected);
            assert_eq!(again.attr(file.ino, None).unwrap().0.nlink, 2);
            assert_eq!(again.attr(made, None).unwrap().0.nlink, 1);
        } else {
            again.abort(txn(5));
            assert_eq!(again.attr(file.ino, None).unwrap().0.nlink, 1);
            assert!(matches!(again.attr(made, None), Err(RegionError::Fs(FsError::Stale))));
        }
        assert_eq!(again.reap(), []);
        assert_eq!(findings(&mut again), [""; 0]);
    }
}

#[test]
fn half_of_a_dispatch_is_no_damage() {
    let mut r = region(4);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let intents = [
        new_inode(FileKind::Directory),
        add_name(ROOT, &[b'a'; 200], FileKind::Directory),
        Intent::DropLink { inode: file },
    ];
    let collected = r.collect(txn(5), &intents, NOW).unwrap();
    let words: Vec<(u64, u64)> = collected
        .writes
        .iter()
        .flat_map(|(gpa, bytes)| {
            let at = gpa.offset().0;
            let words = bytes.chunks_exact(8).enumerate();
            words.map(move |(n, word)| (at + 8 * n as u64, u64::from_le_bytes(word.try_into().unwrap())))
        })
        .collect();
    let mut seed = 3u64;
    for round in 0..200 {
        let (again, _) = recovered(&r);
        for (at, word) in &words {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if seed >> 63 == 1 {
                again.store.pool.pmem().write_u64(again.store.at(*at), *word);
            }
        }
        let (mut again, recovery) = recovered(&again);
        assert!(recovery.damaged.is_empty(), "round {round}: {:?}", recovery.damaged);
        assert_eq!(again.reap(), [txn(5)]);
        dispatch(&again, txn(5), &collected);
        assert_eq!(again.reap(), []);
        assert_eq!(again.lookup(ROOT, &[b'a'; 200]).unwrap().0.kind, FileKind::Directory);
        assert!(again.attr(file.ino, None).is_err());
        assert_eq!(findings(&mut again), [""; 0], "round {round}");
    }
}

#[test]
fn a_rewritten_directory_log_says_where_it_goes_on() {
    let mut r = region(4);
    let dir = make(&mut r, ROOT, b"dir", FileKind::Directory).unwrap();
    let tail = |r: &mut Region| r.attr(dir.ino, None).unwrap().1;
    let sequel = |r: &mut Region, known| r.log_sequel(dir, known).unwrap();
    let fill = |r: &mut Region| {
        for n in 0..300u32 {
            let name = format!("name-{n}").into_bytes();
            make(r, dir, &name, FileKind::Fifo).unwrap();
            unlink(r, dir, &name).unwrap();
        }
    };
    fill(&mut r);
    let before = tail(&mut r);
    let early = Tail::new(before.version(), 70);
    let pages = [early, before].map(|known| {
        let sequel = sequel(&mut r, known).unwrap();
        assert_eq!((sequel.known.tail, sequel.rewritten), (known, None), "the same log");
        sequel.known.page
    });
    assert_ne!(pages[0], pages[1]);
    let unheard_of = Tail::new(before.version(), before.units() + 1);
    assert_eq!(sequel(&mut r, unheard_of), None);

    while r.collect_garbage(NOW) {}
    let after = tail(&mut r);
    assert_eq!(after.version(), before.version() + 1);
    make(&mut r, dir, b"later", FileKind::Fifo).unwrap();
    for (known, page) in [early, before].into_iter().zip(pages) {
        let sequel = sequel(&mut r, known).unwrap();
        assert_eq!(sequel.known, LogCursor { tail: known, page }, "as of the log before");
        let rewritten = sequel.rewritten.unwrap();
        assert_eq!((rewritten.0, rewritten.1.tail), (before, after));
    }
    assert_eq!(sequel(&mut r, unheard_of), None, "not in the old log either");
    assert_eq!(sequel(&mut r, after).map(|s| s.rewritten), Some(None));
    let (mut again, _) = recovered(&r);
    assert_eq!(sequel(&mut again, before), None, "not remembered over a restart");
    assert!(sequel(&mut again, after).is_some());

    // only the last time is remembered, and not when the directory has left the cache
    fill(&mut r);
    while r.collect_garbage(NOW) {}
    assert_eq!(sequel(&mut r, before), None);
    assert!(sequel(&mut r, after).is_some());
    r.cache.take(dir.ino.slot());
    assert_eq!(sequel(&mut r, after), None);
    let file = make(&mut r, dir, b"file", FileKind::File).unwrap();
    assert!(matches!(
        r.log_sequel(file, after),
        Err(RegionError::Fs(FsError::NotDirectory))
    ));
}

#[test]
fn extended_attributes_have_limits() {
    let mut r = region(8);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let mut set = |name: &[u8], len| match r.set_xattr(file, name, &vec![1; len], XattrMode::Any, NOW) {
        Ok(_) => true,
        Err(RegionError::Fs(FsError::TooBig)) => false,
        Err(error) => panic!("{error}"),
    };
    assert!(!set(b"user.large", XATTR_VALUE_MAX + 1));
    let n = (0..100u8).take_while(|n| set(&[b'a', *n + 1], XATTR_VALUE_MAX)).count();
    assert_eq!(n, 15, "values of 64 KiB and their names fit a MiB");
    assert!(set(&[b'a', 1], XATTR_VALUE_MAX), "one of them anew");
    assert!(set(&[b'a', 1], 0));
    for n in 0..255u8 {
        assert!(set(&[&[b'n'; 254][..], &[n + 1]].concat(), 1));
    }
    assert!(!set(&[b'x'; 255], 1), "names that no list could show");
    assert!(set(b"x", 1));
    let names = r.list_xattr(file).unwrap();
    assert_eq!(
        names.iter().map(|name| name.len() + 1).sum::<usize>(),
        255 * 256 + 15 * 3 + 2
    );
    let (mut again, recovery) = recovered(&r);
    assert!(recovery.damaged.is_empty());
    assert_eq!(again.list_xattr(file).unwrap(), names);
}

#[test]
fn garbage_collection_keeps_everything_but_the_garbage() {
    let mut r = region(8);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let mut model = vec![0u8; 20_000];
    r.set_xattr(file, b"user.a", &[1; 300], XattrMode::Any, NOW).unwrap();
    let large: Vec<u8> = (0..XATTR_VALUE_MAX).map(|n| (n % 251) as u8).collect();
    r.set_xattr(file, b"user.large", &large, XattrMode::Any, NOW).unwrap();
    for n in 0..2000u64 {
        let (at, len) = ((n * 7919 % 19_000) as usize, 1 + (n * 31 % 900) as usize);
        model[at..at + len].fill(n as u8);
        r.write(
            file,
            WriteAt::Offset(at as u64),
            &vec![n as u8; len],
            Tail::default(),
            NOW,
        )
        .unwrap();
        for name in [&b"one"[..], b"other"] {
            make(&mut r, ROOT, name, FileKind::Fifo).unwrap();
            unlink(&mut r, ROOT, name).unwrap();
        }
    }
    make(&mut r, ROOT, b"last", FileKind::Fifo).unwrap();
    let (attr, tail) = r.attr(file.ino, None).unwrap();
    let listing = r.read_dir(ROOT, 0, 100).unwrap();
    while r.collect_garbage(NOW) {
        r.set_tick(1, 0);
    }
    let (attr_after, tail_after) = r.attr(file.ino, None).unwrap();
    assert_eq!(attr, attr_after);
    assert!(
        tail_after.version() > tail.version() && tail_after.units() * 2 < tail.units(),
        "{tail:?} {tail_after:?}"
    );
    assert!(r.attr(Ino::ROOT, None).unwrap().1.units() < 500);
    model.truncate(attr.size as usize);
    let (mut again, recovery) = recovered(&r);
    assert!(recovery.damaged.is_empty());
    for r in [&mut r, &mut again] {
        let mut bytes = vec![9; 30_000];
        assert_eq!(r.read(file, 0, &mut bytes).unwrap() as u64, attr.size);
        assert!(bytes[..model.len()] == model);
        assert_eq!(r.get_xattr(file, b"user.a").unwrap(), [1; 300]);
        assert!(r.get_xattr(file, b"user.large").unwrap() == large);
        assert_eq!(r.read_dir(ROOT, 0, 100).unwrap(), listing);
        assert_eq!(findings(r), [""; 0]);
        make(r, ROOT, b"new", FileKind::Fifo).unwrap();
        assert!(
            r.lookup(ROOT, b"new").unwrap().0.cookie > listing[1].cookie,
            "cookies are never used again"
        );
    }
}

#[test]
fn an_answer_brings_the_entries_that_the_caller_lacks() {
    let mut r = region(4);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let start = r.file_map(file, 0).unwrap().cursor;
    let mut known = start.tail;
    for n in 0..200u64 {
        let written = r
            .write(file, WriteAt::Offset(n * 100), &[n as u8; 60], known, NOW + n as i64)
            .unwrap();
        let units = written.entries.expect("it follows what was known");
        let mut read = LogEntries::new(file.ino, known.version(), known.units(), &units);
        let entries = read.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        assert!(!entries.is_empty());
        assert_eq!(read.position(), written.cursor.tail.units());
        known = written.cursor.tail;
    }
    let behind = r
        .write(
            file,
            WriteAt::End,
            b"x",
            Tail::new(known.version(), known.units() - 6),
            NOW,
        )
        .unwrap();
    let units = behind.entries.unwrap();
    let read: Result<Vec<_>, _> = LogEntries::new(file.ino, known.version(), known.units() - 6, &units).collect();
    assert!(read.is_ok());
    assert!(
        r.write(file, WriteAt::End, b"x", start.tail, NOW)
            .unwrap()
            .entries
            .is_none(),
        "too far behind"
    );
    assert!(
        r.write(
            file,
            WriteAt::End,
            b"x",
            Tail::new(known.version(), known.units() + 1000),
            NOW
        )
        .unwrap()
        .entries
        .is_none(),
        "ahead"
    );
    assert_ne!(r.file_map(file, 0).unwrap().cursor.page.0, 0);
}

#[test]
fn sequential_appends_make_one_extent() {
    let mut r = region(8);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let other = make(&mut r, ROOT, b"other", FileKind::File).unwrap();
    for n in 0..40u8 {
        r.write(file, WriteAt::End, &[n; 777], Tail::default(), NOW).unwrap();
    }
    assert_eq!(r.file_map(file, 0).unwrap().extents.len(), 1);
    r.write(other, WriteAt::End, &[1; 10], Tail::default(), NOW).unwrap();
    r.write(file, WriteAt::End, &[1; 4096], Tail::default(), NOW).unwrap();
    assert_eq!(r.file_map(file, 0).unwrap().extents.len(), 2);
    assert_eq!(r.usage().data_bytes, 10 * PAGE as u64);
    assert_eq!(findings(&mut r), [""; 0]);
}

#[test]
fn runs_must_lie_in_what_was_delegated_and_are_taken_once() {
    let mut r = region(4);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let space = r.delegate(SESSION, 4).unwrap()[0];
    let run = |page: u64, at: u64, len: u64, offset: u64| WriteRun {
        offset,
        len,
        gpa: space.gpa.checked_add(page * PAGE as u64 + at).unwrap(),
    };
    let mut commit = |session, runs: &[WriteRun]| {
        r.commit(
            session,
            file,
            NewData { runs, crcs: &[] },
            WriteAt::Offset(0),
            Tail::default(),
            NOW,
        )
    };
    let whole = run(0, 0, 2 * PAGE as u64, 0);
    assert!(commit(SessionId(8), &[whole]).is_err());
    assert!(commit(SESSION, &[run(3, 1, PAGE as u64, 0)]).is_err(), "beyond the end");
    assert!(
        commit(SESSION, &[run(0, 0, 10, 0), run(0, 20, 10, 20)]).is_err(),
        "two runs in a page"
    );
    assert!(
        commit(SESSION, &[run(0, 0, 10, 100), run(1, 0, 10, 0)]).is_err(),
        "out of order"
    );
    assert!(commit(SESSION, &[run(0, 0, 0, 0)]).is_err());
    assert!(commit(SESSION, &[]).is_err());
    let far = commit(SESSION, &[run(0, 0, 10, FILE_SIZE_MAX - 9)]);
    assert!(matches!(far, Err(RegionError::Fs(FsError::FileTooLarge))));
    commit(SESSION, &[whole]).unwrap();
    assert!(commit(SESSION, &[whole]).is_err(), "taken already");
    commit(SESSION, &[run(2, 5, 10, 5), run(3, 0, 1, 50)]).unwrap();
    r.end_session(SESSION);
    assert_eq!(findings(&mut r), [""; 0]);
}

#[test]
fn a_damaged_inode_is_set_aside_and_the_rest_works() {
    let mut r = region(4);
    let bad = make(&mut r, ROOT, b"bad", FileKind::File).unwrap();
    let good = make(&mut r, ROOT, b"good", FileKind::File).unwrap();
    r.write(good, WriteAt::End, b"bytes", Tail::default(), NOW).unwrap();
    r.store.write(bad.ino.slot() * INODE_SIZE as u64 + 5, &[0xff; 3]);
    let (mut r, recovery) = recovered(&r);
    assert_eq!(recovery.damaged.len(), 1);
    assert_eq!(recovery.damaged[0].ino, Some(bad.ino));
    let error = r.attr(bad.ino, None).unwrap_err();
    assert!(
        matches!(&error, RegionError::Fs(FsError::Io(why)) if why.contains("checksum")),
        "{error}"
    );
    let mut bytes = [0; 5];
    r.read(good, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");
    for n in 0..100u8 {
        let new = make(&mut r, ROOT, &[b'n', b'0' + n / 10, b'0' + n % 10], FileKind::File).unwrap();
        assert_ne!(new.ino, bad.ino, "a damaged slot is not handed out");
    }
    assert!(!findings(&mut r).is_empty());
}

#[test]
fn a_file_held_open_outlives_its_name_but_not_a_restart() {
    let mut r = region(4);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    r.write(file, WriteAt::End, &[3; 4096], Tail::default(), NOW).unwrap();
    r.open(SESSION, file).unwrap();
    r.open(SESSION, file).unwrap();
    unlink(&mut r, ROOT, b"file").unwrap();
    assert_eq!(r.dead_held(SESSION), [file]);
    let mut bytes = [0; 10];
    assert_eq!(r.read(file, 0, &mut bytes).unwrap(), 10);
    assert!(matches!(
        r.decide(txn(3), &[Intent::AddLink { inode: file }], &[], NOW),
        Err(RegionError::Fs(FsError::NotFound))
    ));
    let (mut again, recovery) = recovered(&r);
    assert_eq!(recovery.orphans_freed, 1);
    assert!(again.attr(file.ino, None).is_err());
    assert_eq!(findings(&mut again), [""; 0]);
    r.release(SESSION, file);
    assert!(r.attr(file.ino, None).is_err());
    let next = make(&mut r, ROOT, b"next", FileKind::File).unwrap();
    assert_ne!(next, file);
    assert_eq!(findings(&mut r), [""; 0]);
}

#[test]
fn a_region_full_of_names_can_be_emptied_and_filled_again() {
    let mut r = region(4);
    let name = |n: u32| format!("a rather long name, so that the directory's log grows {n:06}").into_bytes();
    let mut filled = Vec::new();
    for round in 0..3 {
        let mut files = 0;
        let error = loop {
            match make(&mut r, ROOT, &name(files), FileKind::File) {
                Ok(_) => files += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(error, RegionError::Fs(FsError::NoSpace)), "{error}");
        assert_eq!(findings(&mut r), [""; 0]);
        for n in 0..files {
            unlink(&mut r, ROOT, &name(n)).unwrap_or_else(|e| panic!("round {round}, {n} of {files}: {e}"));
        }
        assert_eq!(r.usage().inodes, 1);
        assert_eq!(findings(&mut r), [""; 0]);
        filled.push(files);
    }
    assert!(
        filled[0] > 3000 && filled.iter().all(|&n| n * 10 > filled[0] * 9),
        "{filled:?}"
    );
}

/// Pages that are free can be used again only when the mirrors know of it: what makes room waits for that, and does not fail.
#[test]
fn removals_from_a_full_region_wait_for_mirrors_that_are_behind() {
    let mut r = region(2);
    r.capture(Lsn(1));
    let is = |error: RegionError, wanted: FsError| matches!(error, RegionError::Fs(error) if error == wanted);
    let mut pages = Vec::new();
    let full = loop {
        match r.store.take_log_page(Urgency::Frees) {
            Ok(page) => pages.push(page),
            Err(error) => break error,
        }
    };
    assert!(is(full, FsError::NoSpace), "nothing of it will be free by itself");
    let page = pages.pop().unwrap();
    r.store.retire_pages(&[page]);
    assert!(
        r.store
            .take_log_page(Urgency::Frees)
            .is_err_and(|error| is(error, FsError::Retry))
    );
    assert!(
        r.store
            .take_log_page(Urgency::Normal)
            .is_err_and(|error| is(error, FsError::NoSpace))
    );
    make(&mut r, ROOT, b"f", FileKind::File).unwrap();
    let last = r.take_records(&mut Vec::new()).unwrap();
    assert!(
        r.store
            .take_log_page(Urgency::Frees)
            .is_err_and(|error| is(error, FsError::Retry))
    );
    r.set_mirrored(last);
    assert_eq!(r.store.take_log_page(Urgency::Frees).unwrap(), page);
}

#[test]
fn a_region_full_of_data_can_be_emptied_and_filled_again() {
    let mut r = region(4);
    let mut filled = Vec::new();
    for _ in 0..3 {
        let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
        let mut pages = 0;
        while r.write(file, WriteAt::End, &[7; PAGE], Tail::default(), NOW).is_ok() {
            pages += 1;
        }
        let truncate = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        r.set_attr(file, &truncate, NOW).unwrap();
        unlink(&mut r, ROOT, b"file").unwrap();
        filled.push(pages);
        assert_eq!(findings(&mut r), [""; 0]);
    }
    assert!(filled[0] > 500 && filled.iter().all(|&n| n == filled[0]), "{filled:?}");
}

/// What overwrites free waits for readers; the region takes no more and more segments of the pool, of which others want some, meanwhile.
#[test]
fn what_waits_for_readers_does_not_fill_the_pool() {
    let mut r = region(64);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    let used = |r: &Region| {
        let usage = r.store.pool.usage();
        u64::from(usage.segments - usage.free_segments) * (64 << 20) / u64::from(usage.segments)
    };
    let before = used(&r);
    for _ in 0..200 {
        // nobody has been seen meanwhile: no tick ends anything
        let mut offset = 0;
        let runs = r.delegate(SESSION, 256).unwrap().into_iter().map(|space| {
            let len = u64::from(space.pages) * PAGE as u64;
            let at = offset;
            offset += len;
            WriteRun {
                offset: at,
                len,
                gpa: space.gpa,
            }
        });
        let runs: Vec<_> = runs.collect();
        let data = NewData { runs: &runs, crcs: &[] };
        r.commit(SESSION, file, data, WriteAt::Offset(0), Tail::default(), NOW)
            .unwrap();
    }
    let grown = used(&r) - before;
    assert!(grown <= 20 << 20, "{} KiB for 1 MiB", grown >> 10);
    assert_eq!(findings(&mut r), [""; 0]);
}

/// Recovery counts the names of such a directory instead of keeping them: what follows from them comes to the same.
#[test]
fn a_large_directory_is_recovered_without_its_names() {
    let mut r = region(4);
    let kind = |n: usize| match n % 3 {
        0 => FileKind::Directory,
        _ => FileKind::File,
    };
    for n in 0..1500 {
        make(&mut r, ROOT, format!("name{n}").as_bytes(), kind(n)).unwrap();
    }
    for n in (0..1500).filter(|n| n % 3 == 1) {
        unlink(&mut r, ROOT, format!("name{n}").as_bytes()).unwrap();
    }
    let before = r.attr(ROOT.ino, None).unwrap();
    assert_eq!((before.0.nlink, before.0.size), (502, 1000 * 64));
    let (mut again, recovery) = recovered(&r);
    assert_eq!((recovery.damaged, recovery.mended), (vec![], vec![]));
    assert!(again.cache.known(ROOT.ino.slot()).is_none(), "loaded when it is used");
    assert_eq!(again.attr(ROOT.ino, None).unwrap(), before);
    assert_eq!(again.read_dir(ROOT, 0, 2000).unwrap().len(), 1000);
    assert_eq!(findings(&mut again), [""; 0]);
}

#[test]
fn a_region_can_be_handed_from_thread_to_thread() {
    fn send<T: Send>() {}
    send::<crate::Region>();
}

fn asked(request: u64) -> Origin {
    Origin {
        session: SESSION,
        request,
    }
}

/// Does something for a request.
fn for_request<T>(region: &mut Region, request: u64, change: impl FnOnce(&mut Region) -> T) -> T {
    region.asked_by(Some(asked(request)));
    let done = change(region);
    assert_eq!(region.asked_by(None), None, "request {request} is in a commit");
    done
}

/// Each kind of change, by the request of a number; what there is to know of each afterwards.
fn requests(region: &mut Region) -> Vec<(u64, Option<InodeRef>, u64)> {
    let file = for_request(region, 1, |r| make(r, ROOT, b"file", FileKind::File).unwrap());
    for_request(region, 2, |r| {
        r.store(file, WriteAt::Offset(0), &[1; 4000], NOW + 2).unwrap()
    });
    for_request(region, 3, |r| r.store(file, WriteAt::End, b"small", NOW + 3).unwrap());
    for_request(region, 4, |r| {
        r.store(file, WriteAt::Offset(17), b"overwritten", NOW + 4).unwrap()
    });
    let set = SetAttr {
        size: Some(9000),
        mode: Some(0o600),
        ..SetAttr::default()
    };
    for_request(region, 5, |r| r.set_attr(file, &set, NOW + 5).unwrap());
    let long = vec![3; 9000];
    for_request(region, 6, |r| {
        r.set_xattr(file, b"user.a", &long, XattrMode::Any, NOW + 6).unwrap();
    });
    for_request(region, 7, |r| unlink(r, ROOT, b"file").unwrap());
    let other = for_request(region, 8, |r| make(r, ROOT, b"other", FileKind::File).unwrap());
    let page = region.delegate(SESSION, 1).unwrap()[0].gpa;
    let run = |at, gpa| WriteRun {
        offset: at,
        len: 100,
        gpa,
    };
    for_request(region, 9, |r| {
        r.commit(
            SESSION,
            other,
            NewData {
                runs: &[run(0, page)],
                crcs: &[],
            },
            WriteAt::End,
            Tail(0),
            NOW + 9,
        )
        .unwrap();
    });
    let hole = FallocateMode::PunchHole;
    for_request(region, 10, |r| r.fallocate(other, hole, 0, 10, NOW + 10).unwrap());
    let of_other = [(8, Some(other), 0), (9, None, 0), (10, None, 0)];
    let of_directory = [(1, Some(file), 0), (7, None, 0)];
    [&of_directory[..], &of_other].concat()
}

#[test]
fn what_requests_have_done_is_known_after_a_restart_and_garbage_collection() {
    let mut r = region(8);
    let expected = requests(&mut r);
    let is_known = |r: &Region, what: &str| {
        for (request, target, offset) in &expected {
            let done = r.done_before(asked(*request));
            let done = done.unwrap_or_else(|| panic!("{what}: request {request} is not known"));
            assert_eq!(
                (done.target, done.offset),
                (*target, *offset),
                "{what}: request {request}"
            );
        }
        assert_eq!(r.done_before(asked(99)), None);
    };
    is_known(&r, "as it was done");
    for request in [4, 5, 6] {
        // their log went with the file
        assert!(r.done_before(asked(request)).is_some());
    }
    let (mut r, _) = recovered(&r);
    is_known(&r, "after a restart");
    for request in 2..=6 {
        assert_eq!(r.done_before(asked(request)), None);
    }
    for ino in [ROOT, expected[2].1.unwrap()] {
        let slot = ino.ino.slot();
        let mut inode = Box::new(r.store.load(slot).unwrap());
        r.cache.take(slot);
        r.compact_inode(&mut inode).unwrap();
        let live = inode.live_units() + inode.done_units;
        assert_eq!(live, inode.tail.units(), "nothing of a compact log is garbage");
        r.cache.put(inode);
    }
    is_known(&r, "after garbage collection");
    let (mut r, _) = recovered(&r);
    is_known(&r, "after garbage collection and a restart");
    assert_eq!(findings(&mut r), [""; 0]);
}

#[test]
fn a_request_is_in_the_commit_that_does_it_and_in_no_other() {
    let mut r = region(8);
    let file = make(&mut r, ROOT, b"file", FileKind::File).unwrap();
    r.set_xattr(file, b"security.capability", b"x", XattrMode::Any, NOW)
        .unwrap();
    r.asked_by(Some(asked(1)));
    assert!(r.store(file, WriteAt::Offset(u64::MAX), b"too far", NOW).is_err());
    assert!(make(&mut r, ROOT, b"file", FileKind::File).is_err(), "it exists");
    assert_eq!(r.done_before(asked(1)), None);
    r.store(file, WriteAt::Offset(100), b"takes the capability away first", NOW)
        .unwrap();
    assert_eq!(r.done_before(asked(1)).unwrap().offset, 100);
    r.store(file, WriteAt::Offset(200), b"of nobody", NOW).unwrap();
    let (r, _) = recovered(&r);
    assert_eq!(r.done_before(asked(1)).unwrap().offset, 100);
}

#[test]
fn a_transaction_gets_a_number_that_no_incarnation_of_the_region_has_used() {
    let mut r = region(4);
    let mut used = BTreeSet::new();
    for _ in 0..5 {
        for _ in 0..3 {
            let txn = r.next_txn();
            assert!(txn.region() == r.id() && used.insert(txn), "{txn:?}");
        }
        r = recovered(&r).0;
    }
    // what is set aside is set aside durably before the first of it is used
    let limit = r.store.txn_limit;
    assert!(TxnId::is_number(limit.0));
    r.store.next_txn = limit.0;
    let images = Arc::new(Mutex::new(Vec::new()));
    let into = images.clone();
    let pmem = r.store.pool.pmem().clone();
    let sim = pmem.sim().unwrap();
    sim.set_fence_hook(Box::new(move |point| into.lock().push(point.image(&mut LoseAll))));
    let txn = r.next_txn();
    sim.clear_fence_hook();
    assert_eq!(txn.sequence(), limit.0);
    assert_eq!(images.lock().len(), 1, "one fence");
    let mut again = recovered(&r).0;
    assert!(again.next_txn() > txn);
}
