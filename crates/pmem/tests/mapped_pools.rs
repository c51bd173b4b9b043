//! Pools on real files: tmpfs and whatever the build directory lies on.

use polvo_pmem::{Medium, Persistence, Pmem, PmemError};
use proptest::prelude::*;
use std::ffi::CString;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

const LEN: u64 = 1 << 20;

fn tmpfs() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A directory that is on no tmpfs.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn shared_fd(pool: &Pmem) -> OwnedFd {
    pool.fd().unwrap().try_clone_to_owned().unwrap()
}

fn exercise(dir: &Path) -> Medium {
    let path = dir.join("pool");
    let pool = Pmem::create(&path, LEN, None).unwrap();
    let medium = pool.medium();
    assert_eq!(pool.len(), LEN);
    assert_eq!(pool.path(), Some(path.as_path()));
    let mut zeros = vec![1; LEN as usize];
    pool.read(0, &mut zeros);
    assert!(zeros.iter().all(|b| *b == 0));
    pool.write(10, b"hello");
    pool.persist(10, 5);
    pool.write_u64(LEN - 8, 41);
    assert_eq!(pool.faa_u64(LEN - 8, 1), 41);
    assert_eq!(pool.cas_u64(LEN - 8, 42, 43), 42);
    assert_eq!(pool.cas_u64(LEN - 8, 42, 44), 43);
    assert_eq!(pool.read_u64(LEN - 8), 43);
    let big: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    pool.write_streaming(4097, &big);
    pool.zero_streaming(5000, 1000);
    pool.fence();
    pool.sync().unwrap();
    drop(pool);

    let pool = Pmem::open(&path, None).unwrap();
    assert_eq!((pool.len(), pool.medium()), (LEN, medium));
    let mut hello = [0; 5];
    pool.read(10, &mut hello);
    assert_eq!(&hello, b"hello");
    assert_eq!(pool.read_u64(LEN - 8), 43);
    let mut found = vec![0; big.len()];
    pool.read(4097, &mut found);
    let zeroed = 5000 - 4097..6000 - 4097;
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(i, b)| *b == if zeroed.contains(&i) { 0 } else { big[i] })
    );
    medium
}

#[test]
fn a_private_copy_leaves_the_pool_as_it_is() {
    for dir in [tmpfs(), disk()] {
        let path = dir.path().join("pool");
        let pool = Pmem::create(&path, LEN, None).unwrap();
        pool.write(0, b"kept");
        pool.sync().unwrap();
        assert!(matches!(Pmem::open_private(&path), Err(PmemError::Locked { .. })));
        drop(pool);
        let copy = Pmem::open_private(&path).unwrap().expect("a file can be copied");
        assert!(matches!(Pmem::open(&path, None), Err(PmemError::Locked { .. })));
        copy.write(0, b"gone");
        copy.write_streaming(8192, &[7; 8192]);
        copy.persist(0, 4);
        let mut bytes = [0; 4];
        copy.read(0, &mut bytes);
        assert_eq!(&bytes, b"gone");
        drop(copy);
        let pool = Pmem::open(&path, None).unwrap();
        pool.read(0, &mut bytes);
        assert_eq!(&bytes, b"kept");
        pool.read(8192, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }
}

#[test]
fn a_pool_on_tmpfs_survives_its_process() {
    let dir = tmpfs();
    assert_eq!(exercise(dir.path()), Medium::Tmpfs);
    let pool = Pmem::open(&dir.path().join("pool"), None).unwrap();
    assert_eq!(pool.persistence(), Persistence::None);
    assert!(!pool.needs_sync());
}

#[test]
fn a_pool_in_a_plain_file_needs_sync() {
    let dir = disk();
    let medium = exercise(dir.path());
    let pool = Pmem::open(&dir.path().join("pool"), None).unwrap();
    assert_eq!(pool.needs_sync(), medium == Medium::File);
    assert!([Medium::File, Medium::Tmpfs, Medium::FsDax].contains(&medium));
}

#[test]
fn the_flush_instruction_can_be_chosen() {
    let dir = tmpfs();
    let path = dir.path().join("pool");
    for persistence in [
        Persistence::Clwb,
        Persistence::Clflushopt,
        Persistence::Clflush,
        Persistence::None,
    ] {
        match Pmem::create(&path, LEN, Some(persistence)) {
            Ok(pool) => {
                assert_eq!(pool.persistence(), persistence);
                pool.write(60, &[7; 5000]);
                pool.persist(60, 5000);
                pool.write_streaming(61, &[8; 700]);
                pool.write_streaming(10_001, &[9; 70]);
                pool.fence();
                let mut found = vec![0; 12_000];
                pool.read(0, &mut found);
                for (i, byte) in found.into_iter().enumerate() {
                    let expected = match i {
                        61..761 => 8,
                        60..5060 => 7,
                        10_001..10_071 => 9,
                        _ => 0,
                    };
                    assert_eq!(byte, expected, "at {i} with {persistence}");
                }
            }
            Err(PmemError::NotSupported(which)) => {
                assert_eq!(which, persistence);
                assert!(!persistence.is_supported());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// As a process has between `fork` and `exec`, in which descriptors are closed.
fn copies_of_descriptors(path: &Path) -> Vec<OwnedFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
    let of_path = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path));
    let number = |entry: fs::DirEntry| entry.file_name().to_str().unwrap().parse::<i32>().unwrap();
    // all are known before the first copy is made, which would be among them
    let numbers: Vec<i32> = of_path.map(number).collect();
    numbers
        .into_iter()
        // SAFETY: they are open as long as the pool is.
        .map(|number| unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().unwrap())
        .collect()
}

#[test]
fn a_pool_that_was_closed_can_be_opened_whoever_has_copies_of_its_descriptors() {
    let dir = tmpfs();
    let path = dir.path().join("pool");
    let pool = Pmem::create(&path, LEN, None).unwrap();
    let copies = copies_of_descriptors(&path);
    assert_eq!(copies.len(), 2);
    drop(pool);
    let again = Pmem::open(&path, None).unwrap();
    drop(copies);
    let error = Pmem::open(&path, None).unwrap_err();
    assert!(matches!(error, PmemError::Locked { .. }), "{error}");
    drop(again);
}

#[test]
fn two_cannot_have_one_pool() {
    let dir = tmpfs();
    let path = dir.path().join("pool");
    let pool = Pmem::create(&path, LEN, None).unwrap();
    pool.write_u64(0, 9);
    for error in [
        Pmem::open(&path, None).unwrap_err(),
        Pmem::create(&path, LEN, None).unwrap_err(),
    ] {
        assert!(matches!(error, PmemError::Locked { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(pool.read_u64(0), 9, "a refused create must not have emptied it");
    // A peer with the descriptor outlives us: the lock must be gone nevertheless.
    let peer = Pmem::from_fd(shared_fd(&pool), LEN, pool.persistence(), pool.medium()).unwrap();
    drop(pool);
    let again = Pmem::open(&path, None).unwrap();
    again.write_u64(0, 10);
    assert_eq!(peer.read_u64(0), 10);
}

#[test]
fn a_peer_sees_the_same_bytes() {
    let dir = tmpfs();
    let pool = Pmem::create(&dir.path().join("pool"), LEN, None).unwrap();
    let peer = Pmem::from_fd(shared_fd(&pool), LEN, Persistence::None, Medium::Tmpfs).unwrap();
    let per_thread = 20_000;
    thread::scope(|scope| {
        for pool in [&pool, &peer] {
            scope.spawn(move || {
                (0..per_thread).for_each(|_| {
                    pool.faa_u64(64, 1);
                })
            });
        }
    });
    assert_eq!(pool.read_u64(64), 2 * per_thread);
    peer.write_streaming(4096, &[5; 4096]);
    peer.fence();
    let mut found = [0; 4096];
    pool.read(4096, &mut found);
    assert_eq!(found, [5; 4096]);
}

#[test]
fn words_are_not_torn_by_copies() {
    const WORDS: usize = 129;
    const START: u64 = 1016;
    let dir = tmpfs();
    let pool = Pmem::create(&dir.path().join("pool"), LEN, None).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for value in 0..100_000u64 {
                let block = [(value & 0xff) as u8; WORDS * 8 + 1];
                // From unaligned memory, up to a length that is no multiple of a word.
                pool.write(START, &block[..WORDS * 8 + (value % 2) as usize]);
            }
        });
        let mut found = [0; WORDS * 8 + 5];
        let mut distinct = 0u64;
        let mut shift = 0;
        while !writer.is_finished() {
            shift = (shift + 1) % 4;
            let end = shift + WORDS * 8;
            pool.read(START, &mut found[shift..end]);
            let mut last = found[shift];
            for word in found[shift..end].chunks(8) {
                let value = u64::from_ne_bytes(word.try_into().unwrap());
                assert_eq!(value % 0x0101_0101_0101_0101, 0, "torn word {value:#x}");
                distinct += u64::from(last != word[0]);
                last = word[0];
            }
        }
        println!("{distinct} words differed from the one before them: reads did race with writes");
    });
}

#[test]
fn descriptors_that_do_not_hold_what_was_announced_are_refused() {
    let dir = tmpfs();
    let pool = Pmem::create(&dir.path().join("pool"), LEN, None).unwrap();
    let refused = |fd, len, medium| {
        Pmem::from_fd(fd, len, Persistence::None, medium)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(shared_fd(&pool), LEN + 1, Medium::Tmpfs).contains("announced"));
    assert!(refused(shared_fd(&pool), 0, Medium::Tmpfs).contains("announced"));
    assert!(refused(shared_fd(&pool), LEN, Medium::FsDax).contains("fsdax"));
    assert!(refused(fs::File::open("/dev/null").unwrap().into(), LEN, Medium::DevDax).contains("DAX"));
    assert!(refused(fs::File::open("/").unwrap().into(), LEN, Medium::File).contains("neither"));
}

#[test]
fn what_is_no_pool_is_refused_by_name() {
    let dir = tmpfs();
    let open = |path: &Path| {
        let error = Pmem::open(path, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
        error
    };
    assert!(open(dir.path()).contains("directory"));
    assert!(open(&dir.path().join("absent")).contains("No such file"));
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    assert!(open(&empty).contains("empty"));
    assert!(open(Path::new("/dev/null")).contains("no DAX device"));
    assert!(
        Pmem::create(dir.path(), LEN, None)
            .unwrap_err()
            .to_string()
            .contains("directory")
    );
    assert!(
        Pmem::create(&dir.path().join("none"), 0, None)
            .unwrap_err()
            .to_string()
            .contains("no size")
    );
    assert!(
        Pmem::create(&dir.path().join("vast"), u64::MAX, None)
            .unwrap_err()
            .to_string()
            .contains("no size")
    );
    assert!(!dir.path().join("none").exists());
}

#[test]
fn too_little_space_is_an_error_and_leaves_no_file() {
    let dir = tmpfs();
    let path = dir.path().join("pool");
    // More than any tmpfs here has, and less than a file may be long.
    let len = 1 << 50;
    let error = Pmem::create(&path, len, None).unwrap_err();
    assert!(matches!(error, PmemError::NoSpace { .. }), "{error}");
    assert!(!path.exists());
    fs::write(&path, "was here before").unwrap();
    assert!(Pmem::create(&path, len, None).is_err());
    assert_eq!(
        fs::metadata(&path).unwrap().len(),
        0,
        "kept, but without the space that was found"
    );
}

#[test]
fn holes_are_filled_when_a_pool_is_opened() {
    use std::os::unix::fs::MetadataExt;
    let dir = tmpfs();
    let path = dir.path().join("pool");
    fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    let pool = Pmem::open(&path, None).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= pool.len());
}

#[test]
fn out_of_range_panics_without_overflow() {
    let dir = tmpfs();
    let mapped = Pmem::create(&dir.path().join("pool"), LEN, None).unwrap();
    for pool in [mapped, Pmem::simulated(LEN)] {
        let panics = |what: &str, f: &dyn Fn(&Arc<Pmem>)| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&pool)));
            assert!(outcome.is_err(), "{what} on {}", pool.medium());
        };
        panics("read past the end", &|p| p.read(LEN - 3, &mut [0; 4]));
        panics("write past the end", &|p| p.write(LEN, &[0]));
        panics("offset overflow", &|p| p.write(u64::MAX - 1, &[0; 4]));
        panics("length overflow", &|p| p.flush(8, u64::MAX));
        panics("zeroing past the end", &|p| p.zero_streaming(1, LEN));
        panics("streaming past the end", &|p| p.write_streaming(LEN - 1, &[0; 2]));
        panics("word past the end", &|p| {
            p.read_u64(LEN);
        });
        panics("unaligned word", &|p| p.write_u64(4, 0));
        panics("unaligned swap", &|p| {
            p.cas_u64(LEN - 12, 0, 1);
        });
        // The edges themselves are fine.
        pool.read(LEN, &mut []);
        pool.write(LEN, &[]);
        pool.write_streaming(LEN, &[]);
        pool.zero_streaming(LEN, 0);
        pool.persist(LEN, 0);
        pool.write_u64(LEN - 8, 1);
        pool.zero_streaming(0, LEN);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Mapped pools, simulated pools and an array agree.
    #[test]
    fn all_media_agree(steps in prop::collection::vec((0..5u8, 0..8192u64, prop::collection::vec(any::<u8>(), 0..1500)), 1..40)) {
        const POOL: u64 = 10_000;
        let dir = tmpfs();
        let mut model = vec![0; POOL as usize];
        let pools = [
            Pmem::create(&dir.path().join("none"), POOL, Some(Persistence::None)).unwrap(),
            Pmem::create(&dir.path().join("best"), POOL, Some(Persistence::best())).unwrap(),
            Pmem::simulated(POOL),
        ];
        for (what, at, bytes) in steps {
            let range = at as usize..at as usize + bytes.len();
            let (word_at, word) = (at / 8 * 8, bytes.len() as u64);
            let word_range = word_at as usize..word_at as usize + 8;
            let found = u64::from_ne_bytes(model[word_range.clone()].try_into().unwrap());
            match what {
                0 | 1 => model[range.clone()].copy_from_slice(&bytes),
                2 => model[range.clone()].fill(0),
                3 => model[word_range].copy_from_slice(&word.to_ne_bytes()),
                _ => model[word_range].copy_from_slice(&found.wrapping_add(word).to_ne_bytes()),
            }
            for pool in &pools {
                match what {
                    0 => pool.write(at, &bytes),
                    1 => pool.write_streaming(at, &bytes),
                    2 => pool.zero_streaming(at, bytes.len() as u64),
                    3 => pool.write_u64(word_at, word),
                    _ => prop_assert_eq!(pool.faa_u64(word_at, word), found),
                }
                pool.persist(at, bytes.len() as u64);
            }
        }
        for pool in &pools {
            let mut found = vec![0; POOL as usize];
            pool.read(0, &mut found);
            prop_assert_eq!(&found, &model, "{:?}", pool);
            prop_assert_eq!(pool.read_u64(8), u64::from_ne_bytes(model[8..16].try_into().unwrap()));
        }
    }
}

/// The next run learns whether a peer still has the pool mapped that got it from an earlier one, and when it has not.
#[test]
fn a_run_knows_of_mappings_given_out_by_earlier_ones() {
    for dir in [tmpfs(), disk()] {
        let path = dir.path().join("pool");
        let first = Pmem::create(&path, LEN, None).unwrap();
        assert!(!first.is_mapped_since_before(5).unwrap(), "there was none before");
        first.begin_incarnation(5).unwrap();
        assert!(!first.is_mapped_since_before(5).unwrap(), "its own do not count");
        let map = |pool: &Pmem| Pmem::from_fd(shared_fd(pool), LEN, pool.persistence(), pool.medium()).unwrap();
        let peer = map(&first);
        drop(first);
        let second = Pmem::open(&path, None).unwrap();
        assert!(second.is_mapped_since_before(9).unwrap());
        second.begin_incarnation(9).unwrap();
        let own = map(&second);
        assert!(second.is_mapped_since_before(9).unwrap(), "still");
        drop(peer);
        assert!(!second.is_mapped_since_before(9).unwrap());
        drop((second, own));
        let third = Pmem::open(&path, None).unwrap();
        assert!(!third.is_mapped_since_before(u64::from(u32::MAX)).unwrap());
    }
}

/// A tmpfs of its own. No process is made for it: between `fork` and `exec` it would have copies of the descriptors of the other
/// tests here.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// `None`: not allowed here, or the kernel has no huge pages.
    fn new(options: &str) -> Option<Mounted> {
        let dir = tmpfs();
        let (at, options) = (c_string(dir.path()), CString::new(options).unwrap());
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: four strings that live until then.
        let mounted = unsafe { libc::mount(tmpfs, at.as_ptr(), tmpfs, 0, options.as_ptr().cast()) };
        (mounted == 0).then_some(Mounted(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: a string that lives until then.
        unsafe { libc::umount(c_string(self.0.path()).as_ptr()) };
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// KiB of a pool's mapping that are entered as huge pages.
fn in_huge_pages(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let of_pool = maps.split_once(path.to_str().unwrap()).unwrap().1;
    let line = of_pool
        .lines()
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn a_new_pool_takes_huge_pages_where_they_are_given_to_who_asks() {
    const LEN: u64 = (16 << 20) + 4096;
    let Some(mounted) = Mounted::new("huge=advise,size=20m") else {
        eprintln!("not tested: no tmpfs with huge pages can be mounted here");
        return;
    };
    let path = mounted.0.path().join("pool");
    let pool = Pmem::create(&path, LEN, None).unwrap();
    assert!(
        fs::metadata(&path).unwrap().blocks() * 512 >= LEN,
        "all of its space is taken"
    );
    for at in (0..LEN).step_by(4096) {
        pool.write_u64(at, at);
    }
    assert!(in_huge_pages(&path) >= 2048, "at least one");
    drop(pool);
    let pool = Pmem::open(&path, None).unwrap();
    assert!((0..LEN).step_by(4096).all(|at| pool.read_u64(at) == at));
    assert!(in_huge_pages(&path) >= 2048, "at least one");
    drop(pool);

    let too_long = Pmem::create(&path, 32 << 20, None);
    assert!(matches!(too_long, Err(PmemError::NoSpace { .. })), "{too_long:?}");
    assert_eq!(
        fs::metadata(&path).unwrap().blocks(),
        0,
        "what could be had is given back"
    );
}
