//! A node with a simulated pool, mounted in this process: what a program sees through the kernel.
//!
//! Needs `/dev/fuse` and root, as it mounts; without them each test says so and does nothing (`make test` runs in a
//! place that has both).

mod common;
use common::{mount_at, mounted, mounted_on_memory};
use polvo_fuse::{Mount, MountError, MountOptions, unmount};
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

fn read_write(path: &Path) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(!path.exists());
    options
}

#[test]
fn times_before_the_epoch() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("old");
    let file = File::create(&path).expect("created");
    for (seconds, nanoseconds) in [(-2, 250_000_000), (-1, 1), (-3, 0), (0, 999_999_999), (1 << 32, 7)] {
        let time = match u64::try_from(seconds) {
            Ok(after) => UNIX_EPOCH + Duration::new(after, nanoseconds),
            Err(_) => UNIX_EPOCH - Duration::from_secs(-seconds as u64) + Duration::from_nanos(nanoseconds.into()),
        };
        file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time))
            .expect("set");
        let seen = fs::metadata(&path).expect("there");
        assert_eq!((seen.mtime(), seen.mtime_nsec()), (seconds, i64::from(nanoseconds)));
        assert_eq!((seen.atime(), seen.atime_nsec()), (seconds, i64::from(nanoseconds)));
    }
}

#[test]
fn a_file_lives_on_without_a_name_while_it_is_open() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("doomed");
    let file = read_write(&path).open(&path).expect("created");
    file.write_all_at(b"before", 0).expect("written");
    fs::remove_file(&path).expect("unlinked");
    file.write_all_at(b"after", 6).expect("written without a name");
    let mut bytes = [0; 20];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 11);
    assert_eq!(&bytes[..11], b"beforeafter");
    file.set_len(3).expect("truncated");
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .expect("changed");
    let seen = file.metadata().expect("fstat");
    assert_eq!((seen.nlink(), seen.len(), seen.mode() & 0o777), (0, 3, 0o600));
    assert!(!path.exists());
    File::create(&path).expect("the name is free again");
    assert_eq!(file.metadata().expect("fstat").len(), 3);
}

#[test]
fn appends_go_to_the_end_whatever_the_position() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("log");
    let mut first = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .expect("created");
    let mut second = OpenOptions::new().append(true).open(&path).expect("opened");
    first.write_all(b"1").expect("appended");
    second.write_all(b"22").expect("appended");
    first.write_all(b"333").expect("appended");
    // Made appending after it was opened.
    let mut third = read_write(&path).open(&path).expect("opened");
    rustix::fs::fcntl_setfl(&third, OFlags::APPEND).expect("set");
    third.write_all(b"4444").expect("appended");
    assert_eq!(fs::read(&path).expect("read"), b"1223334444");
}

#[test]
fn opening_with_truncation_and_exclusively() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("file");
    fs::write(&path, "some bytes").expect("written");
    assert_eq!(
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap_err()
            .raw_os_error(),
        Some(17)
    );
    assert_eq!(fs::metadata(&path).expect("there").len(), 10);
    File::create(&path).expect("truncated");
    assert_eq!(fs::metadata(&path).expect("there").len(), 0);
}

/// The kernel finds late that a file is a running program's: after the open that truncates.
#[test]
fn a_running_program_is_not_truncated() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("program");
    let program = fs::read("/bin/sleep").expect("read");
    fs::write(&path, &program).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    let mut running = Command::new(&path).arg("60").spawn().expect("run");
    for flags in [
        OFlags::WRONLY,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::TRUNC,
        OFlags::CREATE | OFlags::RDWR | OFlags::TRUNC,
    ] {
        let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
        assert_eq!(opened.map(drop), Err(Errno::TXTBSY), "{flags:?}");
    }
    assert_eq!(running.try_wait().expect("a child"), None, "runs on");
    assert_eq!(fs::read(&path).expect("read"), program);
    running.kill().expect("killed");
    running.wait().expect("ended");
    File::create(&path).expect("truncated");
    assert_eq!(fs::metadata(&path).expect("there").len(), 0);
}

#[test]
fn a_file_without_a_name_may_get_one() {
    let Some(m) = mounted("") else { return };
    let unnamed = |flags: OFlags| {
        let made = rustix::fs::open(
            &m.dir,
            OFlags::TMPFILE | OFlags::RDWR | flags,
            Mode::from_raw_mode(0o640),
        );
        File::from(made.expect("made"))
    };
    let link = |file: &File, to: &Path| {
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, open, CWD, to, AtFlags::SYMLINK_FOLLOW)
    };
    let file = unnamed(OFlags::empty());
    file.write_all_at(b"some bytes", 0).expect("written");
    let seen = file.metadata().expect("fstat");
    assert_eq!((seen.nlink(), seen.len(), seen.mode() & 0o777), (0, 10, 0o640));
    assert_eq!(fs::read_dir(&m.dir).expect("listed").count(), 0, "nobody finds it");
    let path = m.dir.join("named");
    link(&file, &path).expect("named");
    assert_eq!(file.metadata().expect("fstat").nlink(), 1);
    drop(file);
    assert_eq!(fs::read(&path).expect("read"), b"some bytes");
    // with O_EXCL it never gets one; nor does one whose last name was removed
    let never = link(&unnamed(OFlags::EXCL), &m.dir.join("never"));
    assert_eq!(never, Err(Errno::NOENT));
    let file = File::open(&path).expect("opened");
    fs::remove_file(&path).expect("removed");
    assert_eq!(link(&file, &path), Err(Errno::NOENT));
}

#[test]
fn a_large_directory_is_listed_once_and_again_after_rewinding() {
    for options in ["", "readdirplus"] {
        let Some(m) = mounted(options) else { return };
        let dir = m.dir.join("large");
        fs::create_dir(&dir).expect("made");
        let mut expected: Vec<String> = (0..1500)
            .map(|n| format!("{n:0>width$}", width = 4 + n % 200))
            .collect();
        for name in &expected {
            File::create(dir.join(name)).expect("created");
        }
        let open = File::open(&dir).expect("opened");
        let mut stream = Dir::read_from(&open).expect("a stream");
        let names = |stream: &mut Dir| {
            let mut names: Vec<String> = stream
                .map(|e| e.expect("listed").file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        expected.extend([".".to_owned(), "..".to_owned()]);
        expected.sort();
        assert_eq!(names(&mut stream), expected);
        fs::remove_file(dir.join(&expected[700])).expect("removed");
        expected.remove(700);
        fs::create_dir(dir.join("new")).expect("made");
        expected.push("new".to_owned());
        expected.sort();
        stream.rewind();
        assert_eq!(names(&mut stream), expected);
        // Removing what is listed, while it is listed.
        for entry in fs::read_dir(&dir).expect("listed") {
            let path = entry.expect("listed").path();
            fs::remove_file(&path)
                .or_else(|_| fs::remove_dir(&path))
                .expect("removed");
        }
        fs::remove_dir(&dir).expect("it is empty");
    }
}

#[test]
fn extended_attributes() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("file");
    File::create(&path).expect("created");
    let get = |name: &str, room: usize| {
        let mut buffer = vec![0; room];
        rustix::fs::getxattr(&path, name, &mut buffer).map(|len| buffer[..len.min(room)].to_vec())
    };
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"one", XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.a", b"two", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"two", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("trusted.b", &[7; 3000], XattrFlags::empty()).expect("set");
    assert_eq!(get("user.a", 10), Ok(b"one".to_vec()));
    assert_eq!(get("user.a", 2), Err(Errno::RANGE));
    assert_eq!(get("trusted.b", 3000).map(|v| v.len()), Ok(3000));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(3));
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(17));
    assert_eq!(get("user.c", 10), Err(Errno::NODATA));
    let large: Vec<u8> = (0..65_536).map(|n| (n % 251) as u8).collect();
    set("user.a", &large, XattrFlags::REPLACE).expect("set");
    assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(65_536));
    assert_eq!(get("user.a", 65_535), Err(Errno::RANGE));
    assert!(get("user.a", 65_536).expect("there") == large);
    // fifteen of them and their names are a MiB
    for n in 1..15 {
        set(&format!("user.large{n}"), &large, XattrFlags::CREATE).expect("set");
    }
    assert_eq!(set("user.one-more", &large, XattrFlags::CREATE), Err(Errno::TOOBIG));
    for n in 1..15 {
        rustix::fs::removexattr(&path, format!("user.large{n}")).expect("removed");
    }
    // a list of 64 KiB, and no more
    let long = |n: u32| format!("user.{n:0>250}");
    for n in 0..255 {
        set(&long(n), b"", XattrFlags::CREATE).expect("set");
    }
    assert_eq!(set(&long(255), b"", XattrFlags::CREATE), Err(Errno::TOOBIG));
    let mut list = vec![0; 65_536];
    assert_eq!(rustix::fs::listxattr(&path, &mut list), Ok(255 * 256 + 17));
    assert_eq!(rustix::fs::listxattr(&path, &mut list[..65_000]), Err(Errno::RANGE));
    for n in 0..255 {
        rustix::fs::removexattr(&path, long(n)).expect("removed");
    }
    // version 2; user 6, group 4, others 4: the kernel looks at the form before it asks us
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    assert_eq!(
        set("system.posix_acl_access", acl, XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
    let mut buffer = vec![0; 1000];
    let len = rustix::fs::listxattr(&path, &mut buffer).expect("listed");
    let mut names: Vec<&[u8]> = buffer[..len].split_inclusive(|b| *b == 0).collect();
    names.sort();
    assert_eq!(names, [&b"trusted.b\0"[..], b"user.a\0"]);
    rustix::fs::removexattr(&path, "user.a").expect("removed");
    assert_eq!(rustix::fs::removexattr(&path, "user.a"), Err(Errno::NODATA));
}

#[test]
fn files_have_a_time_of_birth() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("f");
    fs::write(&path, "x").expect("written");
    let born = fs::metadata(&path).expect("there").created().expect("statx tells");
    let long_ago = fs::FileTimes::new().set_modified(UNIX_EPOCH);
    let file = File::options().write(true).open(&path).expect("opened");
    file.set_times(long_ago).expect("set");
    let after = fs::metadata(&path).expect("there");
    assert_eq!(after.created().expect("statx tells"), born, "it stays");
    assert_eq!(after.modified().expect("there"), UNIX_EPOCH);
    assert!(born.elapsed().is_ok_and(|age| age < Duration::from_secs(600)));
}

#[test]
fn placement_and_counters_are_attributes() {
    let Some(m) = mounted("") else { return };
    let dir = m.dir.join("local");
    fs::create_dir(&dir).expect("made");
    rustix::fs::setxattr(&dir, "user.polvo.placement", b"local", XattrFlags::empty()).expect("set");
    let mut buffer = vec![0; 1000];
    for name in ["polvo.placement", "user.polvo.placement"] {
        let len = rustix::fs::getxattr(&dir, name, &mut buffer).expect("there");
        assert_eq!(&buffer[..len], b"local");
    }
    let wrong = rustix::fs::setxattr(&dir, "user.polvo.placement", b"nowhere", XattrFlags::empty());
    assert_eq!(wrong, Err(Errno::INVAL));
    assert_eq!(
        rustix::fs::listxattr(&dir, &mut buffer),
        Ok(0),
        "our own attributes are not copied along"
    );
    let len = rustix::fs::getxattr(&m.dir, "user.polvo.counters", &mut buffer).expect("there");
    assert!(
        buffer[..len].starts_with(b"{\"rpcs\":"),
        "{}",
        String::from_utf8_lossy(&buffer[..len])
    );
}

#[test]
fn holes() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("sparse");
    let file = read_write(&path).open(&path).expect("created");
    file.write_all_at(&[1; 4096], 1 << 20).expect("written");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(SeekFrom::Data((1 << 20) + 4096)), Err(Errno::NXIO));
    let allocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    allocate(
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        (1 << 20) + 100,
        200,
    )
    .expect("punched");
    let mut bytes = [9; 400];
    file.read_exact_at(&mut bytes, 1 << 20).expect("read");
    assert!(bytes[..100].iter().chain(&bytes[300..]).all(|b| *b == 1) && bytes[100..300].iter().all(|b| *b == 0));
    // space is not reserved, and nobody is told that it was
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        assert_eq!(allocate(flags, 2 << 20, 100 << 30), Err(Errno::OPNOTSUPP));
    }
    allocate(FallocateFlags::ZERO_RANGE, 2 << 20, 1000).expect("extended");
    assert_eq!(file.metadata().expect("fstat").len(), (2 << 20) + 1000);
    allocate(FallocateFlags::ZERO_RANGE, (1 << 20) - 50, 100).expect("zeroed");
    file.read_exact_at(&mut bytes[..60], 1 << 20).expect("read");
    assert!(bytes[..50].iter().all(|b| *b == 0) && bytes[50..60].iter().all(|b| *b == 1));
    assert_eq!(file.metadata().expect("fstat").len(), (2 << 20) + 1000);
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
}

#[test]
fn renames_with_flags() {
    let Some(m) = mounted("") else { return };
    let [a, b, c] = ["a", "b", "c"].map(|name| m.dir.join(name));
    fs::write(&a, "a").expect("written");
    fs::create_dir(&b).expect("made");
    fs::write(b.join("inside"), "b").expect("written");
    let rename = |old: &Path, new: &Path, flags| rustix::fs::renameat_with(CWD, old, CWD, new, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(&a, &c, RenameFlags::NOREPLACE).expect("renamed");
    rename(&b, &c, RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(fs::read(c.join("inside")).expect("read"), b"b");
    assert_eq!(fs::read(&b).expect("read"), b"a");
    rename(&b, &a, RenameFlags::WHITEOUT).expect("renamed");
    assert_eq!(fs::read(&a).expect("read"), b"a");
    let left = rustix::fs::lstat(&b).expect("a whiteout");
    let kind = rustix::fs::FileType::from_raw_mode(left.st_mode);
    assert_eq!((kind, left.st_rdev), (rustix::fs::FileType::CharacterDevice, 0));
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename(&a, &b, both), Err(Errno::INVAL));
    assert_eq!(rename(&c, &c.join("below"), RenameFlags::empty()), Err(Errno::INVAL));
}

#[test]
fn links_and_special_files() {
    let Some(m) = mounted("") else { return };
    let file = m.dir.join("file");
    fs::write(&file, "x").expect("written");
    fs::hard_link(&file, m.dir.join("hard")).expect("linked");
    let [one, other] = ["file", "hard"].map(|name| fs::metadata(m.dir.join(name)).expect("there"));
    assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
    let target = "t".repeat(4000);
    symlink(&target, m.dir.join("soft")).expect("linked");
    assert_eq!(fs::read_link(m.dir.join("soft")).expect("read"), Path::new(&target));
    let device = rustix::fs::makedev(259, 70_000);
    for (name, kind, rdev) in [
        ("fifo", rustix::fs::FileType::Fifo, 0),
        ("socket", rustix::fs::FileType::Socket, 0),
        ("char", rustix::fs::FileType::CharacterDevice, device),
        ("block", rustix::fs::FileType::BlockDevice, device),
    ] {
        let path = m.dir.join(name);
        rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), rdev).expect("made");
        let seen = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).expect("there");
        assert_eq!(rustix::fs::FileType::from_raw_mode(seen.st_mode), kind);
        assert_eq!(seen.st_rdev, rdev);
    }
}

#[test]
fn many_threads_at_once() {
    let Some(m) = mounted("threads=8") else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let dir = m.dir.join(format!("t{thread}"));
            scope.spawn(move || {
                fs::create_dir(&dir).expect("made");
                for n in 0..100u8 {
                    let path = dir.join(n.to_string());
                    let bytes = vec![thread ^ n; usize::from(n) * 300];
                    fs::write(&path, &bytes).expect("written");
                    assert_eq!(fs::read(&path).expect("read"), bytes);
                    if n % 3 == 0 {
                        fs::remove_file(&path).expect("removed");
                    }
                }
                assert_eq!(fs::read_dir(&dir).expect("listed").count(), 66);
            });
        }
    });
}

#[test]
fn a_large_file_through_one_descriptor_and_copied() {
    let Some(m) = mounted("") else { return };
    let [from, to] = ["from", "to"].map(|name| m.dir.join(name));
    let bytes: Vec<u8> = (0..5_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(&from, &bytes).expect("written");
    assert_eq!(fs::copy(&from, &to).expect("copied"), 5_000_000);
    let mut read = Vec::new();
    File::open(&to).expect("opened").read_to_end(&mut read).expect("read");
    assert!(read == bytes);
    let space = rustix::fs::statvfs(&m.dir).expect("statvfs");
    assert!(space.f_blocks > space.f_bfree && space.f_bfree > 0 && space.f_namemax == 255);
    assert!(space.f_files > space.f_ffree);
}

/// Large reads are answered from the pool, where pages stay as they are meanwhile: whatever becomes of the file, a read shows it as
/// it was at one moment.
#[test]
fn a_large_read_shows_one_moment() {
    // one request of the kernel, wherever the memory begins
    const LEN: usize = 512 << 10;
    // so short that what is added goes on in the page
    const SHORT: usize = LEN / 2 + 1000;
    let Some(m) = mounted_on_memory("") else { return };
    let path = m.dir.join("file");
    let file = read_write(&path).open(&path).expect("created");
    let chunks = |step: u8| [step; LEN];
    file.write_all_at(&chunks(0), 0).expect("written");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut adding = OpenOptions::new().append(true).open(&path).expect("opened");
            for step in 1..=250 {
                // whole, then shorter, then with a little more behind
                file.write_all_at(&chunks(step), 0).expect("written");
                file.set_len(SHORT as u64).expect("cut");
                adding.write_all(&[step; 500]).expect("added");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut bytes = vec![0; LEN];
        let mut lengths = std::collections::BTreeMap::<usize, u32>::new();
        while !is_over.load(Ordering::Relaxed) {
            let read = file.read_at(&mut bytes, 0).expect("read");
            let step = bytes[0];
            let differs = bytes[..read].iter().position(|byte| *byte != step);
            assert_eq!(
                differs,
                None,
                "of {read} bytes of step {step}, with {:?}",
                differs.map(|at| bytes[at])
            );
            *lengths.entry(read).or_default() += 1;
        }
        writer.join().expect("no panic");
        let expected = [SHORT, SHORT + 500, LEN];
        assert!(lengths.keys().all(|len| expected.contains(len)), "{lengths:?}");
    });
    // in very many pieces, with holes, and inline
    file.set_len(0).expect("cut");
    let mut model = vec![0; LEN];
    for n in 0..700 {
        let (at, byte) = (n * 740, (n % 251) as u8);
        model[at..at + 9].fill(byte);
        file.write_all_at(&[byte; 9], at as u64).expect("written");
    }
    let mut bytes = vec![1; LEN];
    let len = 699 * 740 + 9;
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), len);
    assert!(bytes[..len] == model[..len]);
    for (at, size) in [(0, 100_000), (70_000, 65_536), (len - 66_000, LEN)] {
        let read = file.read_at(&mut bytes[..size], at as u64).expect("read");
        assert!(bytes[..read] == model[at..at + read], "{size} bytes at {at}");
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(m) = mounted("ro") else { return };
    assert_eq!(
        File::create(m.dir.join("file")).unwrap_err().raw_os_error(),
        Some(libc::EROFS)
    );
    assert_eq!(fs::read_dir(&m.dir).expect("listed").count(), 0);
}

/// A mount that was taken away while a file was open ends with that file. By then another one may be at the same place.
#[test]
fn what_is_mounted_at_the_same_place_later_stays() {
    let Some(first) = mounted("") else { return };
    let Some(second) = mounted("") else { return };
    let open = File::create(first.dir.join("f")).expect("create");
    rustix::mount::unmount(&first.dir, rustix::mount::UnmountFlags::DETACH).expect("lazily");
    let later = Mount::new(second.client.clone(), &first.dir, MountOptions::default()).expect("the place is free");
    File::create(first.dir.join("g")).expect("by the later mount");
    drop(open);
    first.mount.as_ref().expect("mounted").join().expect("in good order");
    assert!(first.dir.join("g").exists(), "the later mount is gone");
    later.unmount(false).expect("it is there");
}

#[test]
fn unmounting() {
    let Some(mut m) = mounted("") else { return };
    let mount = m.mount.take().expect("mounted");
    let file = File::create(m.dir.join("file")).expect("created");
    assert!(matches!(mount_at(&m.client, &m.dir, ""), Err(MountError::AlreadyMounted { path, .. }) if path == m.dir));
    assert!(matches!(mount.unmount(false), Err(MountError::Busy(path)) if path == m.dir));
    assert!(mount.is_mounted() && m.dir.join("file").exists(), "it lives on");
    drop(file);
    mount.unmount(false).expect("unused");
    assert!(!mount.is_mounted());
    mount.unmount(false).expect("nothing to do");
    mount.join().expect("it has ended");
    assert_eq!(
        fs::read_dir(&m.dir).expect("listed").count(),
        0,
        "what is below is seen again"
    );

    // By somebody else, while we wait for the end.
    let mount = mount_at(&m.client, &m.dir, "").expect("mounted again");
    assert!(m.dir.join("file").exists());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| mount.join());
        unmount(&m.dir, false).expect("unmounted");
        waiting.join().expect("no panic").expect("ended in good order");
    });
    assert!(matches!(unmount(&m.dir, false), Err(MountError::NotMounted(_))));

    // By force, with a file open.
    let mount = mount_at(&m.client, &m.dir, "").expect("mounted again");
    let file = File::open(m.dir.join("file")).expect("opened");
    mount.unmount(true).expect("forced");
    assert_eq!(file.metadata().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));

    // Dropping unmounts.
    drop(mount_at(&m.client, &m.dir, "").expect("mounted again"));
    assert_eq!(fs::read_dir(&m.dir).expect("listed").count(), 0);
}

/// Does something as another user: a thread has ids of its own.
fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], f: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    std::thread::scope(|scope| {
        let acting = scope.spawn(move || {
            let groups: Vec<_> = groups.iter().map(|id| rustix::process::Gid::from_raw(*id)).collect();
            set_thread_groups(&groups).expect("root may");
            set_thread_gid(rustix::process::Gid::from_raw(gid)).expect("root may");
            set_thread_uid(rustix::process::Uid::from_raw(uid)).expect("root may");
            f()
        });
        acting.join().expect("what it does is checked by its caller")
    })
}

/// xfstests generic/093.
#[test]
fn who_changes_a_program_takes_its_capabilities_away() {
    let Some(m) = mounted("") else { return };
    let path = m.dir.join("program");
    let file = read_write(&path).open(&path).expect("created");
    // version 2, effective: CAP_NET_RAW
    let capabilities = [[1, 0, 0, 2], [0, 32, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    let large = vec![1; 64 << 10];
    let changes: [(&str, &dyn Fn()); 7] = [
        ("a small write", &|| file.write_all_at(b"x", 3).expect("written")),
        ("a large write", &|| file.write_all_at(&large, 3).expect("written")),
        ("an append", &|| {
            let mut end = OpenOptions::new().append(true).open(&path).expect("opened");
            end.write_all(b"more").expect("appended");
        }),
        ("a truncation", &|| file.set_len(10).expect("cut")),
        ("a truncation when it is opened", &|| {
            drop(File::create(&path).expect("truncated"));
        }),
        ("a hole", &|| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 0, 5).expect("punched");
        }),
        ("another owner", &|| {
            std::os::unix::fs::chown(&path, Some(7), None).expect("given")
        }),
    ];
    for (what, change) in changes {
        rustix::fs::setxattr(&path, "security.capability", &capabilities, XattrFlags::empty()).expect("set");
        let mut value = [0; 32];
        assert_eq!(
            rustix::fs::getxattr(&path, "security.capability", &mut value),
            Ok(20),
            "{what}"
        );
        change();
        let after = rustix::fs::getxattr(&path, "security.capability", &mut value);
        assert_eq!(after, Err(Errno::NODATA), "{what}");
    }
}

/// xfstests generic/375, 683 to 685.
#[test]
fn the_set_group_id_bit_goes_when_a_stranger_to_the_group_changes_a_file() {
    let Some(m) = mounted("acl") else { return };
    const OWNER: u32 = 1007;
    const GROUP: u32 = 2007;
    let path = m.dir.join("marked");
    fs::set_permissions(&m.dir, fs::Permissions::from_mode(0o777)).expect("changed");
    let file = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let allocate = |flags| rustix::fs::fallocate(file(), flags, 0, 5).expect("allocated");
    // owner, owning group and others, as permission bits would say it
    let entry = |tag: u16, allows: u16| [tag.to_le_bytes(), allows.to_le_bytes(), [0xff; 2], [0xff; 2]].concat();
    let list = [2u32.to_le_bytes().to_vec(), entry(1, 6), entry(4, 6), entry(0x20, 4)].concat();
    let changes: [(&str, &(dyn Fn() + Sync)); 6] = [
        ("a write", &|| file().write_all_at(b"x", 3).expect("written")),
        ("a truncation", &|| file().set_len(3).expect("cut")),
        ("opening it empty", &|| {
            drop(
                OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(&path)
                    .expect("opened"),
            )
        }),
        ("a hole", &|| {
            allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
        }),
        ("zeros", &|| allocate(FallocateFlags::ZERO_RANGE)),
        ("a list", &|| {
            rustix::fs::setxattr(&path, "system.posix_acl_access", &list, XattrFlags::empty()).expect("set");
        }),
    ];
    for (what, change) in changes {
        for (who, groups, keeps) in [("a stranger", &[][..], false), ("a member", &[GROUP][..], true)] {
            let _ = fs::remove_file(&path);
            fs::write(&path, b"contents").expect("written");
            std::os::unix::fs::chown(&path, Some(OWNER), Some(GROUP)).expect("given");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2664)).expect("changed");
            as_user(OWNER, OWNER, groups, change);
            let mode = fs::metadata(&path).expect("there").mode() & 0o7000;
            assert_eq!(mode, if keeps { 0o2000 } else { 0 }, "{what} by {who}");
        }
    }
}

/// xfstests generic/355: who asks for the mode alone, as stat(1) may, is answered by the kernel, which takes a write or an
/// allocation to change size and times.
#[test]
fn the_mode_alone_is_told_without_the_bits_that_a_write_has_taken() {
    let Some(m) = mounted("") else { return };
    const OWNER: u32 = 1007;
    let path = m.dir.join("marked");
    let file = read_write(&path).open(&path).expect("created");
    std::os::unix::fs::chown(&path, Some(OWNER), Some(OWNER)).expect("given");
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let changes: [(&str, &(dyn Fn() + Sync)); 2] = [
        ("a write", &|| file.write_all_at(b"some bytes", 0).expect("written")),
        ("a hole", &|| {
            rustix::fs::fallocate(&file, flags, 0, 5).expect("punched")
        }),
    ];
    let mode = |mask| {
        rustix::fs::statx(CWD, &path, AtFlags::empty(), mask)
            .expect("there")
            .stx_mode
    };
    for (what, change) in changes {
        for round in 0..10 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6711)).expect("changed");
            // until the kernel keeps it
            (0..5).for_each(|_| assert_eq!(mode(StatxFlags::BASIC_STATS) & 0o7777, 0o6711));
            as_user(OWNER, OWNER, &[], change);
            assert_eq!(mode(StatxFlags::MODE) & 0o7777, 0o711, "{what}, round {round}");
        }
    }
}

/// As with the mode: of what is made and removed in a directory the kernel knows that it changes the directory's size and times.
#[test]
fn the_link_count_of_a_directory_alone_is_told_as_it_is() {
    let Some(m) = mounted("") else { return };
    let (one, two) = (m.dir.join("one"), m.dir.join("two"));
    fs::create_dir(&one).expect("made");
    fs::create_dir(&two).expect("made");
    let open = |path: &Path| File::open(path).expect("opened");
    let (one_dir, two_dir) = (open(&one), open(&two));
    let links = |dir: &File, mask| {
        let told = rustix::fs::statx(dir, "", AtFlags::EMPTY_PATH, mask);
        told.expect("there").stx_nlink
    };
    let make: &dyn Fn() = &|| rustix::fs::mkdirat(&one_dir, "sub", Mode::RWXU).expect("made");
    let moves: &dyn Fn() = &|| rustix::fs::renameat(&one_dir, "sub", &two_dir, "sub").expect("moved");
    let remove: &dyn Fn() = &|| rustix::fs::unlinkat(&two_dir, "sub", AtFlags::REMOVEDIR).expect("removed");
    for round in 0..10 {
        for (what, change, after) in [
            ("make", make, (3, 2)),
            ("move", moves, (2, 3)),
            ("remove", remove, (2, 2)),
        ] {
            for dir in [&one_dir, &two_dir] {
                (0..5).for_each(|_| assert!(links(dir, StatxFlags::BASIC_STATS) >= 2));
            }
            change();
            let now = (links(&one_dir, StatxFlags::NLINK), links(&two_dir, StatxFlags::NLINK));
            assert_eq!(now, after, "{what}, round {round}");
        }
    }
}

#[test]
fn a_mount_may_refuse_shared_mappings() {
    const PROGRAM: &str = r#"
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
def said(flags, protection):
    try:
        mapping = mmap.mmap(fd, 4096, flags, protection)
    except OSError as error:
        return errno.errorcode[error.errno]
    return mapping[:5].decode()
READ, WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
print(said(mmap.MAP_SHARED, WRITE), said(mmap.MAP_SHARED, READ), said(mmap.MAP_PRIVATE, WRITE))
"#;
    for (option, expected) in [
        ("mmap=private", "ENODEV ENODEV bytes"),
        ("mmap=shared", "bytes bytes bytes"),
        ("", "bytes bytes bytes"),
    ] {
        let Some(m) = mounted(option) else { return };
        let path = m.dir.join("file");
        fs::write(&path, b"bytes".repeat(1000)).expect("written");
        let output = std::process::Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(&path)
            .output();
        let output = output.expect("python3 is there");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{option:?}");
    }
}
