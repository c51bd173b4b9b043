//! Mounting: by mount(2) for root, by the set-user-id program `fusermount3` for everybody else.
//!
//! Unmounting is not here: it takes a path, and whoever knows what is mounted there.

use crate::transport::Device;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names of the program that mounts on behalf of users.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// How to mount. The kernel checks permissions (`default_permissions`) in any case.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountParameters {
    /// Source, in `/proc/mounts`.
    pub fsname: String,
    /// What the type is called after `fuse.`.
    pub subtype: String,
    /// Other users may use it, too.
    pub allow_other: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-user-id and set-group-id bits of programs are honoured.
    pub suid: bool,
    /// Device files open devices.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Reading moves no access times.
    pub noatime: bool,
}

impl MountParameters {
    /// What the kernel reads of its file system's own options; `fusermount` takes the same words.
    fn words(&self) -> String {
        let allow_other = if self.allow_other { ",allow_other" } else { "" };
        format!("subtype={},default_permissions{allow_other}", self.subtype)
    }

    /// As flags of mount(2), and as words for `fusermount`.
    fn flags(&self) -> [(bool, MountFlags, &'static str); 5] {
        [
            (self.read_only, MountFlags::RDONLY, "ro"),
            (!self.suid, MountFlags::NOSUID, "nosuid"),
            (!self.dev, MountFlags::NODEV, "nodev"),
            (!self.exec, MountFlags::NOEXEC, "noexec"),
            (self.noatime, MountFlags::NOATIME, "noatime"),
        ]
    }
}

/// Mounts at a directory, an absolute path without symbolic links. The kernel's first request, INIT, can be read then.
pub(crate) fn mount(path: &Path, parameters: &MountParameters) -> io::Result<Device> {
    let device = match Device::open() {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_root() => {
            return mount_by_helper(path, parameters);
        }
        Err(error) => return Err(error),
    };
    let root_mode = fs::metadata(path)?.mode();
    let data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},{}",
        std::os::fd::AsFd::as_fd(&device).as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        parameters.words(),
    );
    let mut flags = MountFlags::empty();
    for (on, flag, _) in parameters.flags() {
        flags.set(flag, on);
    }
    let data = CString::new(data)?;
    match rustix::mount::mount(parameters.fsname.as_str(), path, "fuse", flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_by_helper(path, parameters),
        Err(error) => Err(error.into()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The helper's path, from `PATH` and the usual places.
pub fn find_helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/bin", "/usr/bin", "/sbin"].map(PathBuf::from));
    HELPERS
        .iter()
        .flat_map(|name| directories.iter().map(move |d| d.join(name)))
        .find(|file| file.is_file())
}

/// Has the helper open the device and mount. It sends the descriptor through the socket that it finds as its input.
fn mount_by_helper(path: &Path, parameters: &MountParameters) -> io::Result<Device> {
    let missing = || io::Error::new(io::ErrorKind::PermissionDenied, "fusermount3 was not found");
    let helper = find_helper().ok_or_else(missing)?;
    let mut words = vec![format!("fsname={}", parameters.fsname), parameters.words()];
    words.extend(
        parameters
            .flags()
            .into_iter()
            .filter(|(on, ..)| *on)
            .map(|(.., word)| word.to_owned()),
    );
    let (ours, theirs) = UnixStream::pair()?;
    let mut running = Command::new(helper)
        .arg("-o")
        .arg(words.join(","))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let received = receive_descriptor(&ours);
    drop(ours);
    let mut said = String::new();
    if let Some(mut stderr) = running.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    let status = running.wait()?;
    match received? {
        Some(fd) if status.success() => Device::from_fd(fd),
        _ if said.contains("user_allow_other") => Err(io::Error::new(io::ErrorKind::PermissionDenied, said.trim())),
        _ => Err(io::Error::other(said.trim().to_owned())),
    }
}

/// The descriptor that comes through a socket; `None` when the other side has closed it.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    rustix::io::retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors.next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    #[test]
    fn options_become_words_and_flags() {
        let parameters = MountParameters {
            fsname: "polvo".to_owned(),
            subtype: "polvo".to_owned(),
            allow_other: true,
            exec: true,
            ..MountParameters::default()
        };
        assert_eq!(parameters.words(), "subtype=polvo,default_permissions,allow_other");
        let on: Vec<_> = parameters
            .flags()
            .into_iter()
            .filter(|(on, ..)| *on)
            .map(|(.., word)| word)
            .collect();
        assert_eq!(on, ["nosuid", "nodev"]);
    }

    #[test]
    fn a_descriptor_comes_through_a_socket() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let file = fs::File::open("/dev/null").expect("it is there");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&theirs, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).expect("sent");
        assert!(receive_descriptor(&ours).expect("received").is_some());
        drop(theirs);
        assert!(receive_descriptor(&ours).expect("closed").is_none());
    }
}
