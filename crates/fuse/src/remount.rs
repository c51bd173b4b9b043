//! Changing the flags of a mount that is there: what mount(8) asks its helper for with `-o remount`.

use crate::MountError;
use crate::mount_point::{resolve, table_entry};
use crate::options::{FSTYPE, MountOptions};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::path::{Path, PathBuf};

/// Options by which the mount table says what the kernel and the process of the mount agreed on; mount(8) repeats them.
const KERNELS_OWN: [&str; 3] = ["user_id=", "group_id=", "max_read="];

/// Gives a PolvoFS mount the kernel's flags that the comma-separated `options` name: read-only or not, and whether set-user-id
/// bits, device files and programs are honoured. As mount(8) means it, the list is a whole one: what it does not forbid is
/// allowed. Options that the process of the mount reads when it begins (`threads`, `acl`, ...) stay as they are: mount(8)
/// repeats them, and they are checked and ignored.
///
/// # Errors
/// [`MountError::NotMounted`]; an option that no mount knows; `noatime` or `relatime` when it is not what the mount began with,
/// since its process keeps the access times; [`MountError::Busy`] (a file is open for writing); or what the system says.
pub fn remount(path: &Path, options: &str) -> Result<(), MountError> {
    let path = resolve(path)?;
    let Some(entry) = table_entry(&path)?.filter(|entry| entry.fstype == FSTYPE) else {
        return Err(MountError::NotMounted(path));
    };
    let flags = flags(options, &entry.options)?;
    mount_remount(&path, flags, c"").map_err(|error| failed(path, error))
}

fn failed(path: PathBuf, error: Errno) -> MountError {
    match error {
        Errno::BUSY => MountError::Busy(path),
        _ => MountError::System {
            what: "cannot remount",
            path,
            source: error.into(),
        },
    }
}

/// The flags that `list` names. `current`: the options of the mount as it is.
fn flags(list: &str, current: &str) -> Result<MountFlags, MountError> {
    let without_access_times = current.split(',').any(|option| option == "noatime");
    let mut flags = MountFlags::empty();
    for option in list.split(',').map(str::trim) {
        let (flag, on) = match option {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            // Where no flag says anything of access times, the kernel leaves them as they are.
            "noatime" | "relatime" if (option == "noatime") != without_access_times => {
                return Err(MountError::BadOption {
                    option: option.to_owned(),
                    why: "cannot be changed while mounted; unmount and mount again".to_owned(),
                });
            }
            "remount" => continue,
            _ if KERNELS_OWN.iter().any(|own| option.starts_with(own)) => continue,
            _ => {
                MountOptions::default().apply(option)?;
                continue;
            }
        };
        flags.set(flag, on);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_forbidden_is_allowed() {
        let current = "ro,nosuid,nodev,relatime";
        let repeated =
            "remount,rw,nosuid,nodev,relatime,user_id=0,group_id=0,max_read=131072,threads=4,allow_other,_netdev";
        assert_eq!(
            flags(repeated, current).expect("known"),
            MountFlags::NOSUID | MountFlags::NODEV
        );
        assert_eq!(flags("remount,ro", current).expect("known"), MountFlags::RDONLY);
        assert_eq!(
            flags("noexec,exec,nodev,dev,suid", current).expect("known"),
            MountFlags::empty()
        );
        assert!(matches!(flags("remount,frob", current), Err(MountError::UnknownOption(option)) if option == "frob"));
    }

    #[test]
    fn access_times_stay_as_they_were_mounted() {
        for (current, same, other) in [
            ("rw,relatime", "relatime", "noatime"),
            ("ro,noatime", "noatime", "relatime"),
        ] {
            assert_eq!(flags(same, current).expect("no change"), MountFlags::empty());
            let error = flags(other, current).unwrap_err().to_string();
            assert!(error.contains("unmount and mount again"), "{error}");
            assert_eq!(
                flags("rw,nodiratime", current).expect("not the kernel's"),
                MountFlags::empty()
            );
        }
    }

    #[test]
    fn only_our_own_mounts_are_remounted() {
        assert!(matches!(
            remount(Path::new("/proc"), "ro"),
            Err(MountError::NotMounted(_))
        ));
    }
}
