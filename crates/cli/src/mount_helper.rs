//! The command line by which mount(8) calls its helpers: `mount.polvo` for the type `polvo`, and `mount.fuse.polvo` to remount, as
//! `fuse.polvo` is the type in the mount table. Without that one mount(8) asks `mount.fuse` of fuse3, which knows nothing of us.

use crate::CliError;
use crate::args::Cli;
use clap::{Arg, ArgAction, Command, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names under which the program is a helper.
const NAMES: [&str; 2] = ["mount.polvo", "mount.fuse.polvo"];
/// What the mounts of mount(8) begin with. It never tells a helper of these two; it says `nosuid` and `nodev` where they are
/// wanted, which it adds by itself for `user`.
const BEGIN_WITH: &str = "suid,dev";

/// What mount(8) says by single letters.
const FLAGS: [(&str, char, &str); 4] = [
    ("fake", 'f', "Do everything but the mount"),
    ("no mtab", 'n', "Make no entry in /etc/mtab: none is ever made"),
    (
        "sloppy",
        's',
        "Bear unknown options: ignored, they are errors all the same",
    ),
    ("verbose", 'v', "Say more: ignored"),
];

/// What a helper was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HelperCall {
    /// Nothing (`-f`).
    Nothing,
    /// A mount, as a command line of `polvo mount`.
    Mount(Vec<OsString>),
    /// Other flags for a mount that is there.
    Remount {
        /// Its mount point.
        dir: PathBuf,
        /// All options, comma-separated.
        options: String,
    },
}

/// Whether a program that was called like this is a helper.
pub fn is_helper(called: &OsStr) -> bool {
    let name = Path::new(called).file_name();
    NAMES.iter().any(|helper| name == Some(OsStr::new(helper)))
}

/// Parses the command line of a helper, `NAME SOURCE DIR [-sfnv] [-o OPTIONS]`, the program's name first. `as_root`: root mounts,
/// whose mounts honour set-user-id bits and device files unless the options forbid it.
///
/// # Errors
/// [`CliError::Usage`] for anything else.
pub fn parse(args: impl Iterator<Item = OsString>, as_root: bool) -> Result<HelperCall, CliError> {
    let mut args = args.skip(1);
    let mut options = String::new();
    let mut named = Vec::new();
    let mut fake = false;
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let list = args
                    .next()
                    .ok_or_else(|| CliError::Usage("-o: options are missing".into()))?
                    .into_string()
                    .map_err(|list| CliError::Usage(format!("-o {}: not UTF-8", list.to_string_lossy())))?;
                if !options.is_empty() {
                    options.push(',');
                }
                options.push_str(&list);
            }
            Some("-t" | "-N") => drop(args.next()),
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => {
                if let Some(unknown) = flags[1..].chars().find(|c| FLAGS.iter().all(|(_, flag, _)| flag != c)) {
                    return Err(CliError::Usage(format!("mount.polvo: unknown flag -{unknown}")));
                }
                fake |= flags.contains('f');
            }
            _ => named.push(arg),
        }
    }
    let [source, dir] = <[OsString; 2]>::try_from(named)
        .map_err(|_| CliError::Usage("usage: mount.polvo polvo://HOST:PORT/ DIR [-sfnv] [-o OPTIONS]".into()))?;
    if fake {
        return Ok(HelperCall::Nothing);
    }
    if options.split(',').any(|option| option.trim() == "remount") {
        return Ok(HelperCall::Remount {
            dir: dir.into(),
            options,
        });
    }
    if as_root {
        let comma = if options.is_empty() { "" } else { "," };
        options = format!("{BEGIN_WITH}{comma}{options}");
    }
    let mut line: Vec<OsString> = vec!["polvo".into(), "mount".into(), source, dir];
    if !options.is_empty() {
        line.extend(["-o".into(), options.into()]);
    }
    Ok(HelperCall::Mount(line))
}

/// The command line of a helper, for its manual page: [`parse`] takes it as mount(8) writes it.
pub fn command() -> Command {
    let mount = Cli::command();
    let mount = mount.find_subcommand("mount").expect("a command of polvo");
    let help = mount.get_after_long_help().expect("it explains the options").clone();
    let flags = FLAGS.map(|(name, flag, what)| Arg::new(name).short(flag).help(what).action(ArgAction::SetTrue));
    Command::new("mount.polvo")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .about("Mount a PolvoFS cluster, called by mount(8)")
        .arg(Arg::new("SOURCE").required(true).help("polvo://HOST:PORT/ of a node"))
        .arg(Arg::new("DIR").required(true).help("Mount point"))
        .arg(
            Arg::new("options")
                .short('o')
                .value_name("OPTIONS")
                .help("Mount options, comma-separated; with `remount` those of a mount that is there change"),
        )
        .args(flags)
        .after_long_help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str, as_root: bool) -> Result<HelperCall, CliError> {
        parse(line.split(' ').map(OsString::from), as_root)
    }

    fn mounts(line: &str, as_root: bool) -> Vec<OsString> {
        match parsed(line, as_root).unwrap() {
            HelperCall::Mount(line) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mount_8_is_understood() {
        assert_eq!(
            mounts("mount.polvo polvo://h:1/ /mnt -n -o rw,secret_file=/s", false),
            ["polvo", "mount", "polvo://h:1/", "/mnt", "-o", "rw,secret_file=/s"]
        );
        assert_eq!(
            parsed("mount.polvo -f polvo://h:1/ /mnt", true).unwrap(),
            HelperCall::Nothing
        );
        for bad in [
            "mount.polvo",
            "mount.polvo /mnt",
            "mount.polvo -x a b",
            "mount.polvo a b -o",
        ] {
            assert!(parsed(bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_mount_8_leaves_out_is_on() {
        assert_eq!(
            mounts("mount.polvo polvo://h:1/ /mnt -o rw,nodev", true)
                .last()
                .unwrap(),
            "suid,dev,rw,nodev"
        );
        assert_eq!(
            mounts("mount.polvo polvo://h:1/ /mnt", true).last().unwrap(),
            "suid,dev"
        );
        assert_eq!(mounts("mount.polvo polvo://h:1/ /mnt", false).last().unwrap(), "/mnt");
    }

    #[test]
    fn a_remount_is_told_from_a_mount() {
        for name in NAMES {
            assert!(is_helper(OsStr::new(&format!("/sbin/{name}"))));
            assert_eq!(
                parsed(&format!("{name} polvo /mnt -o remount,ro"), true).unwrap(),
                HelperCall::Remount {
                    dir: "/mnt".into(),
                    options: "remount,ro".into()
                }
            );
        }
        assert!(!is_helper(OsStr::new("/usr/bin/polvo")));
    }
}
