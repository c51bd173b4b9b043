//! A mounted client: starting, ending and waiting for the session with the kernel.

use crate::filesystem::PolvoFilesystem;
use crate::kernel_cache::Shared;
use crate::mount_point::{self, Detach};
use crate::{MountError, MountOptions};
use parking_lot::Mutex;
use polvo_client::Client;
use polvo_fusedev::Session;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mount that is being served. Dropping it unmounts by force.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    /// Cleared when the last thread of the session is done with the file system.
    alive: Arc<AtomicBool>,
    /// Taken by whoever waits for the end; the lock is held while waiting, so that all who wait see the same end.
    session: Mutex<Option<Session>>,
}

impl Mount {
    /// Mounts a client at an empty directory and serves it on threads of its own until it is unmounted, by
    /// [`unmount`](Self::unmount) or by anybody else. Asks nothing of the cluster yet, so it may be called from a thread
    /// that serves a node.
    ///
    /// # Errors
    /// What is wrong with the mount point or this machine; see [`MountError`].
    pub fn new(client: Arc<Client>, mountpoint: &Path, options: MountOptions) -> Result<Mount, MountError> {
        let mountpoint = mount_point::check(mountpoint)?;
        let alive = Arc::new(AtomicBool::new(true));
        let kernel = Shared::default();
        if options.cache.keeps() {
            client.start_tokens(Some(kernel.clone()));
        }
        let filesystem = PolvoFilesystem::new(client, &options, kernel.clone(), alive.clone());
        match Session::mount(filesystem, &mountpoint, &options.parameters(), options.threads) {
            Ok(session) => {
                kernel.is_reached_by(session.notifier());
                Ok(Mount {
                    mountpoint,
                    alive,
                    session: Mutex::new(Some(session)),
                })
            }
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied && is_root() => {
                Err(MountError::DeviceDenied)
            }
            Err(source) => Err(MountError::System {
                what: "cannot mount at",
                path: mountpoint,
                source,
            }),
        }
    }

    /// Where, absolute and without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the session with the kernel is still on.
    pub fn is_mounted(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Unmounts and waits until every thread of the mount has ended. With `force`, programs that still use the mount get
    /// errors from then on. Nothing to do when it has been unmounted already.
    ///
    /// Blocks while the kernel writes back what memory mappings have changed, which needs the cluster; do not call it
    /// from a thread that serves a node.
    ///
    /// # Errors
    /// [`MountError::Busy`] (without `force`; the mount lives on), or what the system says.
    pub fn unmount(&self, force: bool) -> Result<(), MountError> {
        if self.is_mounted() {
            let how = if force { Detach::Forcibly } else { Detach::WhenUnused };
            match mount_point::detach(&self.mountpoint, how) {
                // Somebody else was faster.
                Err(MountError::NotMounted(_)) => {}
                result => result?,
            }
        }
        self.join()
    }

    /// Waits until the mount has been unmounted (by whomever) and all its threads have ended.
    ///
    /// # Errors
    /// When the session with the kernel ended in an error.
    pub fn join(&self) -> Result<(), MountError> {
        let mut session = self.session.lock();
        let Some(running) = session.take() else {
            return Ok(());
        };
        running.join().map_err(|source| MountError::System {
            what: "the session with the kernel broke at",
            path: self.mountpoint.clone(),
            source,
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(true) {
            tracing::error!(path = %self.mountpoint.display(), %error, "could not unmount");
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
