//! Mount options, as the command line and `/etc/fstab` give them.

use crate::MountError;
use crate::mappings::SharedMappings;
use polvo_fusedev::MountParameters;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// Type under which `/proc/mounts` shows our mounts.
pub(crate) const FSTYPE: &str = "fuse.polvo";

/// Bounds of the default number of threads. A thread that waits for a missing node serves nobody else meanwhile, so
/// there are some more than a small machine has cores; sleeping ones cost nothing.
const THREADS: (usize, usize) = (4, 16);

/// What the kernel may keep between two uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheMode {
    /// Nothing: it asks each time.
    None,
    /// Attributes and names of which the mount has tokens: nobody changes them before the kernel has forgotten them.
    #[default]
    Strict,
    /// Also bytes of files that are opened for reading alone; see `pages` for what may be seen of a size that changes.
    Pages,
}

impl CacheMode {
    /// Whether anything is kept, and tokens are used for it.
    pub(crate) fn keeps(self) -> bool {
        self != CacheMode::None
    }
}

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// Refuse every change (the kernel does).
    pub read_only: bool,
    /// Let users other than the one who mounts in. The kernel checks permissions in any case.
    pub allow_other: bool,
    /// Honour set-user-id and set-group-id bits of programs.
    pub suid: bool,
    /// Let device files open devices.
    pub dev: bool,
    /// Let programs be executed.
    pub exec: bool,
    /// Answer readdirplus; `None`: where the kernel may keep what it is told so. Else it asks for every entry's attributes again
    /// anyway, and listing a directory would need every node that holds one of its inodes.
    pub readdirplus: Option<bool>,
    /// Locks of files are those of the whole cluster; off: each mount has its own, and closing a file asks nothing.
    pub locks: bool,
    /// Reading moves access times by the rule of `relatime`; off: only setting them does.
    pub access_times: bool,
    /// Every read does (`strictatime`).
    pub strict_access_times: bool,
    /// So does listing directories; off (`nodiratime`), or without `access_times`: only setting them does.
    pub directory_access_times: bool,
    /// POSIX access control lists: the kernel enforces them, for which it asks about every inode that is not the caller's.
    pub acl: bool,
    /// What programs may map shared (`MAP_SHARED`); the rest fails with ENODEV.
    pub shared_mappings: SharedMappings,
    /// What the kernel may keep.
    pub cache: CacheMode,
    /// Operations fail at once while a node is known to be away, instead of waiting for it for a while.
    pub soft: bool,
    /// All data that is read is compared with its checksums; what is damaged is EIO.
    pub verify: bool,
    /// Name of the source in `/proc/mounts`.
    pub fsname: String,
    /// Threads that serve the kernel.
    pub threads: NonZeroUsize,
}

impl Default for MountOptions {
    /// Read-write, one thread a core (at least 4, at most 16); open to all users when root mounts.
    fn default() -> MountOptions {
        let cores = available_parallelism().map_or(THREADS.0, NonZeroUsize::get);
        MountOptions {
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            suid: false,
            dev: false,
            exec: true,
            readdirplus: None,
            locks: true,
            access_times: true,
            strict_access_times: false,
            directory_access_times: true,
            acl: false,
            shared_mappings: SharedMappings::One,
            cache: CacheMode::Strict,
            soft: false,
            verify: false,
            fsname: "polvo".to_owned(),
            threads: NonZeroUsize::new(cores.clamp(THREADS.0, THREADS.1)).expect("at least 4"),
        }
    }
}

impl MountOptions {
    /// Applies a comma-separated list of options, as after `-o` or in the fourth field of `/etc/fstab`. Options that
    /// only mount(8) or the init system reads (`defaults`, `noauto`, `_netdev`, ...) are taken and ignored.
    ///
    /// # Errors
    /// Names the first option that is unknown or has a bad value; those before it are applied.
    pub fn apply(&mut self, list: &str) -> Result<(), MountError> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "suid" => self.suid = true,
                "nosuid" => self.suid = false,
                "dev" => self.dev = true,
                "nodev" => self.dev = false,
                "exec" => self.exec = true,
                "noexec" => self.exec = false,
                "readdirplus" => self.readdirplus = Some(true),
                "noreaddirplus" => self.readdirplus = Some(false),
                "relatime" | "atime" | "strictatime" => {
                    self.access_times = true;
                    self.strict_access_times = name == "strictatime";
                }
                "nostrictatime" => self.strict_access_times = false,
                "noatime" => self.access_times = false,
                "diratime" => self.directory_access_times = true,
                "nodiratime" => self.directory_access_times = false,
                "acl" => self.acl = true,
                "noacl" => self.acl = false,
                "lock" => self.locks = true,
                "nolock" => self.locks = false,
                "mmap" => self.shared_mappings = parse_mmap(name, value)?,
                "cache" => self.cache = parse_cache(name, value)?,
                "soft" => self.soft = true,
                "hard" => self.soft = false,
                "verify" => self.verify = true,
                "noverify" => self.verify = false,
                "fsname" => self.fsname = parse_name(name, value)?,
                "threads" => self.threads = parse_threads(name, value)?,
                // Every change is on the media when it is acknowledged, and with it its times.
                "sync" | "dirsync" | "async" | "lazytime" | "nolazytime" => {}
                // The kernel checks permissions in any case.
                "default_permissions" => {}
                _ if is_for_mount_8(name) => {}
                _ => return Err(MountError::UnknownOption(option.to_owned())),
            }
        }
        Ok(())
    }

    /// The part of it that the kernel is told at the mount.
    pub(crate) fn parameters(&self) -> MountParameters {
        MountParameters {
            fsname: self.fsname.clone(),
            subtype: FSTYPE.trim_start_matches("fuse.").to_owned(),
            allow_other: self.allow_other,
            read_only: self.read_only,
            suid: self.suid,
            dev: self.dev,
            exec: self.exec,
            noatime: !self.access_times,
        }
    }
}

/// Options that mount(8) or the init system reads, and those that say that something is off which no mount of ours has.
fn is_for_mount_8(name: &str) -> bool {
    const NAMES: [&str; 22] = [
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "nofail",
        "_netdev",
        "comment",
        "helper",
        "uhelper",
        "silent",
        "loud",
        "nomand",
        "noiversion",
        "norelatime",
        "symfollow",
    ];
    NAMES.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn bad(option: &str, why: impl Into<String>) -> MountError {
    MountError::BadOption {
        option: option.to_owned(),
        why: why.into(),
    }
}

fn parse_name(option: &str, value: &str) -> Result<String, MountError> {
    if value.is_empty() {
        return Err(bad(option, "needs a value"));
    }
    Ok(value.to_owned())
}

fn parse_mmap(option: &str, value: &str) -> Result<SharedMappings, MountError> {
    match value {
        "one" => Ok(SharedMappings::One),
        "shared" => Ok(SharedMappings::All),
        "private" => Ok(SharedMappings::None),
        _ => Err(bad(
            option,
            format!("{value:?} is none of \"one\", \"shared\", \"private\""),
        )),
    }
}

fn parse_cache(option: &str, value: &str) -> Result<CacheMode, MountError> {
    match value {
        "none" => Ok(CacheMode::None),
        "strict" => Ok(CacheMode::Strict),
        "pages" => Ok(CacheMode::Pages),
        _ => Err(bad(
            option,
            format!("{value:?} is none of \"none\", \"strict\" and \"pages\""),
        )),
    }
}

fn parse_threads(option: &str, value: &str) -> Result<NonZeroUsize, MountError> {
    match value.parse::<NonZeroUsize>() {
        Ok(threads) if threads.get() <= 256 => Ok(threads),
        _ => Err(bad(option, format!("{value:?} is no number from 1 to 256"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_options() {
        let mut options = MountOptions::default();
        options
            .apply("ro,allow_other,threads=3, fsname=polvo://h:1/ ,,x-systemd.automount,_netdev,suid,noatime")
            .expect("known");
        assert!(options.read_only && options.allow_other && options.suid && !options.soft && !options.access_times);
        assert_eq!((options.threads.get(), options.fsname.as_str()), (3, "polvo://h:1/"));
        options.apply("rw,nosuid,soft,relatime").expect("known");
        assert!(!options.read_only && !options.suid && options.soft && options.access_times);
        assert!(options.directory_access_times);
        options.apply("strictatime").expect("known");
        assert!(options.access_times && options.strict_access_times);
        options.apply("relatime").expect("known");
        assert!(options.access_times && !options.strict_access_times);
        options.apply("nodiratime").expect("known");
        assert!(options.access_times && !options.directory_access_times);
        options.apply("diratime").expect("known");
        assert!(options.directory_access_times);
        assert_eq!(options.shared_mappings, SharedMappings::One);
        options.apply("hard,mmap=private").expect("known");
        assert!(!options.soft);
        assert_eq!(options.shared_mappings, SharedMappings::None);
        options.apply("mmap=shared").expect("known");
        assert_eq!(options.shared_mappings, SharedMappings::All);
        options.apply("cache=none").expect("known");
        assert_eq!(options.cache, CacheMode::None);
        options.apply("cache=pages").expect("known");
        assert_eq!(options.cache, CacheMode::Pages);
        options.apply("cache=strict").expect("known");
        assert_eq!(options.cache, CacheMode::Strict);
        options.apply("mmap=one").expect("known");
        assert_eq!(options.shared_mappings, SharedMappings::One);
    }

    #[test]
    fn what_mount_8_reads_is_ignored() {
        let plain = MountOptions::default();
        let mut options = plain.clone();
        options
            .apply("defaults,auto,noauto,user,user=maya,users,nouser,owner,group,nofail,_netdev,comment=a b,x-gvfs-show,X-mount.mkdir")
            .expect("known");
        options
            .apply("sync,async,dirsync,lazytime,nolazytime,silent,loud,nomand,noiversion,norelatime,nostrictatime,uhelper=udisks2")
            .expect("known");
        assert_eq!(options, plain);
        for claim in ["iversion", "mand", "nosymfollow", "context=x"] {
            assert!(options.apply(claim).is_err(), "no mount of ours does {claim}");
        }
    }

    #[test]
    fn bad_options_are_named() {
        let mut options = MountOptions::default();
        assert_eq!(
            options.apply("rw,frob=1").unwrap_err().to_string(),
            "unknown mount option \"frob=1\""
        );
        for list in [
            "mmap",
            "mmap=none",
            "cache",
            "cache=loose",
            "threads=0",
            "threads=x",
            "threads",
            "threads=1000",
            "fsname=",
        ] {
            let option = list.split('=').next().unwrap_or_default();
            let message = options.apply(list).unwrap_err().to_string();
            assert!(message.starts_with(&format!("mount option {option}: ")), "{message}");
        }
    }
}
