//! `polvo mount` and `polvo umount`: a mount that is a client of its own.

use crate::args::{ClusterArgs, MountArgs, Mover, Provider, UmountArgs};
use crate::connect::{Location, Reach};
use crate::descriptors;
use crate::detached::{Detached, leave_session, this_program};
use crate::mount_files::MountFiles;
use crate::on_thread::on_thread;
use crate::output::say;
use crate::{CliError, Context};
use polvo_client::Client;
use polvo_fabric::Address;
use polvo_fuse::{Mount, MountError, MountOptions};
use polvo_proto::Cred;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tracing::{info, warn};

/// First word of the line that says that the mount is there.
const MOUNTED: &str = "mounted";

fn mount_error(dir: &Path, error: MountError) -> CliError {
    CliError::Mount {
        dir: dir.display().to_string(),
        why: error.to_string(),
    }
}

/// A mount that this process serves.
pub struct MountedDir {
    mount: Arc<Mount>,
    client: Arc<Client>,
}

impl MountedDir {
    /// Mounts a client. `source` is what the mount table shows, unless the options say otherwise.
    pub fn mount(client: Arc<Client>, source: &str, dir: &Path, options: &str) -> Result<MountedDir, CliError> {
        let mut parsed = MountOptions {
            fsname: source.to_string(),
            ..MountOptions::default()
        };
        parsed.apply(options).map_err(|e| mount_error(dir, e))?;
        if parsed.soft {
            client.set_patience(Duration::ZERO);
        }
        if parsed.verify {
            client.verify_reads(true);
        }
        client.start_maintenance();
        let mount = Mount::new(client.clone(), dir, parsed).map_err(|e| mount_error(dir, e))?;
        Ok(MountedDir {
            mount: Arc::new(mount),
            client,
        })
    }

    /// Where, without symbolic links.
    pub fn dir(&self) -> &Path {
        self.mount.mountpoint()
    }

    /// A handle to wait for the end of the mount with.
    fn handle(&self) -> Arc<Mount> {
        self.mount.clone()
    }

    /// Unmounts, by force when files are open, and ends the session. Blocks while the kernel writes back.
    pub fn unmount(self) -> Result<(), CliError> {
        let result = match self.mount.unmount(false) {
            Err(MountError::Busy(dir)) => {
                warn!(
                    "{} is in use; programs that use it get errors from now on",
                    dir.display()
                );
                self.mount.unmount(true)
            }
            other => other,
        };
        self.end(result)
    }

    /// Unmounts without waiting for the kernel to write anything back: programs that use the mount get errors. Ends the session.
    pub fn unmount_by_force(self) -> Result<(), CliError> {
        let result = self.mount.unmount(true);
        self.end(result)
    }

    fn end(self, unmounted: Result<(), MountError>) -> Result<(), CliError> {
        self.client.shutdown();
        unmounted.map_err(|e| mount_error(self.mount.mountpoint(), e))
    }
}

/// Options of `-o` that are ours, not the mount's: they say which cluster.
fn split_options(options: &[String], cluster: &mut ClusterArgs) -> Result<String, CliError> {
    let mut rest = Vec::new();
    for option in options.iter().map(|o| o.trim()).filter(|o| !o.is_empty()) {
        match option.split_once('=') {
            Some(("secret_file", value)) => cluster.secret_file = Some(value.into()),
            Some(("cluster_dir", value)) => cluster.cluster_dir = Some(value.into()),
            Some(("cluster", value)) => cluster.cluster = Some(value.parse().map_err(CliError::Usage)?),
            Some(("security", value)) => {
                let why = |why| CliError::Usage(format!("mount option security={value}: {why}"));
                cluster.security = Some(value.parse().map_err(why)?);
            }
            Some(("provider", "shm")) => cluster.provider = Some(Provider::Shm),
            Some(("provider", "tcp")) => cluster.provider = Some(Provider::Tcp),
            Some(("provider", other)) => {
                return Err(CliError::Usage(format!(
                    "mount option provider={other}: must be shm or tcp"
                )));
            }
            Some(("transfers", "client")) => cluster.transfers = Some(Mover::Client),
            Some(("transfers", "server")) => cluster.transfers = Some(Mover::Server),
            Some(("transfers", other)) => {
                return Err(CliError::Usage(format!(
                    "mount option transfers={other}: must be client or server"
                )));
            }
            _ => rest.push(option),
        }
    }
    Ok(rest.join(","))
}

/// Runs `polvo mount`.
pub fn mount(args: &MountArgs) -> Result<(), CliError> {
    let mut args = args.clone();
    let options = split_options(&args.options, &mut args.cluster)?;
    let source = Location::parse(&args.source)?;
    if source.path.iter().any(|b| *b != b'/') {
        return Err(CliError::Usage(format!(
            "{}: only the root of a cluster can be mounted, not {}",
            args.source.to_string_lossy(),
            source.shown()
        )));
    }
    let reach = Reach::resolve(&args.cluster, source.authority.as_deref())?;
    // Named in full, since a detached process works in another directory.
    let dir = std::path::absolute(&args.dir).doing(|| args.dir.display().to_string())?;
    if args.foreground {
        return serve(&reach, &source, &dir, &options, None);
    }
    if args.detached {
        leave_session();
        let files = args.files.as_deref().and_then(MountFiles::named);
        return serve(&reach, &source, &dir, &options, files);
    }
    let files = MountFiles::of_this_process(&reach, &dir)?;
    start_detached(&args, &reach, &dir, &options, &files)
}

/// Starts a process of its own for the mount and waits until it is there.
fn start_detached(
    args: &MountArgs,
    reach: &Reach,
    dir: &Path,
    options: &str,
    files: &MountFiles,
) -> Result<(), CliError> {
    let absolute = |path: &Path| std::path::absolute(path).doing(|| path.display().to_string());
    let mut line: Vec<OsString> = vec!["mount".into(), args.source.clone(), dir.into()];
    if !options.is_empty() {
        line.extend(["-o".into(), options.into()]);
    }
    line.extend(["--log-level".into(), args.log_level.clone().into()]);
    line.extend(["--files".into(), files.name().into()]);
    if let Some(cluster) = &reach.dir {
        line.extend(["--cluster-dir".into(), absolute(&cluster.dir)?.into()]);
    }
    if let Some(file) = &args.cluster.secret_file {
        line.extend(["--secret-file".into(), absolute(file)?.into()]);
    }
    if let Some(id) = &args.cluster.cluster {
        line.extend(["--cluster".into(), id.to_string().into()]);
    }
    if let Some(provider) = args.cluster.provider {
        line.extend(["--provider".into(), provider.to_string().into()]);
    }
    if let Some(security) = args.cluster.security {
        line.extend(["--security".into(), security.to_string().into()]);
    }
    if let Some(mover) = args.cluster.transfers {
        line.extend(["--transfers".into(), mover.to_string().into()]);
    }
    if args.cluster.verify {
        line.push("--verify".into());
    }
    let mut program = Command::new(this_program()?);
    program.args(line);
    let log = args.log.clone().unwrap_or_else(|| files.log());
    let mut child = Detached::start(program, &log)?;
    let wait = Duration::from_secs(args.wait);
    match child.wait_for(MOUNTED, Instant::now() + wait, |_| ()) {
        Ok(_) => Ok(()),
        Err(failure) => {
            files.remove();
            // Its last line says why in full already.
            let last = failure.log_tail.lines().last().unwrap_or_default();
            match (failure.status, last.strip_prefix("polvo: ")) {
                (Some(_), Some(why)) => Err(CliError::Other(why.to_string())),
                _ => Err(CliError::Other(failure.explain("the mount", wait))),
            }
        }
    }
}

/// Mounts and serves until the mount is gone or a signal comes.
fn serve(
    reach: &Reach,
    source: &Location,
    dir: &Path,
    options: &str,
    files: Option<MountFiles>,
) -> Result<(), CliError> {
    descriptors::raise_limit(descriptors::MOUNT_WANTS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting the asynchronous runtime".into())?;
    let shown = shown_source(source, reach);
    let result = LocalSet::new().block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate()).doing(|| "handling SIGTERM".into())?;
        let mut interrupt = signal(SignalKind::interrupt()).doing(|| "handling SIGINT".into())?;
        let mut config = reach.client_config(format!("mount {}", dir.display()), Cred::Kernel);
        config.timeouts.away = reach.timeouts.away;
        let client = Client::connect(config)
            .await
            .doing(|| format!("connecting to {shown}"))?;
        let (at, options) = (dir.to_path_buf(), options.to_string());
        let mounted = on_thread("mount", move || MountedDir::mount(client, &shown, &at, &options)).await??;
        let registered = files.map(|files| files.register(mounted.dir())).transpose()?;
        say(format!("{MOUNTED} {}", mounted.dir().display()));
        let handle = mounted.handle();
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: unmounting"),
            _ = interrupt.recv() => info!("SIGINT: unmounting"),
            _ = on_thread("mounted", move || handle.join()) => info!("unmounted"),
        }
        let limit = reach.timeouts.stop;
        let ending = on_thread("unmount", move || mounted.unmount());
        let result = match tokio::time::timeout(limit, ending).await {
            Ok(result) => result.and_then(|r| r),
            Err(_) => Err(CliError::Other(format!(
                "{}: unmounting took more than {limit:?}",
                dir.display()
            ))),
        };
        drop(registered);
        result
    });
    runtime.shutdown_background();
    result
}

/// What the mount table is to show: an address that could be typed, where there is one.
fn shown_source(source: &Location, reach: &Reach) -> String {
    let tcp = reach.dir.iter().flat_map(|d| &d.addresses).find_map(|a| match a {
        Address::Tcp(at) => Some(at),
        _ => None,
    });
    match source.authority.as_ref().or(tcp) {
        Some(authority) => format!("polvo://{authority}/"),
        None => "polvo".into(),
    }
}

/// Runs `polvo umount`.
pub fn umount(args: &UmountArgs) -> Result<(), CliError> {
    polvo_fuse::unmount(&args.dir, args.force).map_err(|e| mount_error(&args.dir, e))
}

/// Changes the flags of the mount at `dir`, whichever process serves it, as mount(8) asks its helper to. `options`:
/// comma-separated; those that say which cluster are ignored.
///
/// # Errors
/// As [`polvo_fuse::remount`], or an option with a value that it cannot have.
pub fn remount(dir: &Path, options: &str) -> Result<(), CliError> {
    let options: Vec<String> = options.split(',').map(str::to_string).collect();
    let options = split_options(&options, &mut ClusterArgs::default())?;
    polvo_fuse::remount(dir, &options).map_err(|e| mount_error(dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_options_are_told_from_the_mounts() {
        let mut cluster = ClusterArgs::default();
        let options = [
            "ro",
            "secret_file=/s",
            "provider=tcp",
            "threads=2",
            "transfers=server",
            "security=encrypt",
            "",
        ]
        .map(String::from);
        assert_eq!(split_options(&options, &mut cluster).unwrap(), "ro,threads=2");
        assert_eq!(cluster.secret_file, Some("/s".into()));
        assert_eq!(cluster.provider, Some(Provider::Tcp));
        assert_eq!(cluster.transfers, Some(Mover::Server));
        assert_eq!(cluster.security, Some(polvo_fabric::Security::Encrypt));
        assert!(split_options(&["security=tls".into()], &mut cluster).is_err());
        assert!(split_options(&["provider=udp".into()], &mut cluster).is_err());
        assert!(split_options(&["transfers=both".into()], &mut cluster).is_err());
    }
}
