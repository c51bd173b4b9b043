//! The cluster secret, in a file of its own.
//!
//! The file has one line that is neither empty nor a comment (`#`): the secret, at least 16 characters, or the cluster's
//! id, a colon and the secret. With the id in it the file is all that a client needs besides an address. Nobody but the
//! owner and the group may have access to it.

use crate::{CliError, ClusterId, Context};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// Fewest characters of a secret.
pub const SECRET_MIN: usize = 16;
/// Most bytes of a secret file.
const FILE_MAX: u64 = 4096;

/// What a secret file holds.
#[derive(Clone)]
pub struct Secret {
    /// The cluster, when the file names it.
    pub cluster: Option<ClusterId>,
    /// The secret.
    pub secret: Arc<[u8]>,
}

impl std::fmt::Debug for Secret {
    /// Never shows the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Secret {
    /// A new secret for a new cluster: 256 random bits.
    pub fn random(cluster: ClusterId) -> Secret {
        let mut bits = [0u8; 32];
        getrandom::fill(&mut bits).expect("the system always has random numbers");
        Secret {
            cluster: Some(cluster),
            secret: bits.map(|byte| format!("{byte:02x}")).concat().into_bytes().into(),
        }
    }

    /// Reads a secret file; refuses one that others than owner and group may read or write.
    pub fn read(file: &Path) -> Result<Secret, CliError> {
        let what = || format!("secret file {}", file.display());
        let open = std::fs::File::open(file).doing(what)?;
        let meta = open.metadata().doing(what)?;
        if !meta.is_file() || meta.len() > FILE_MAX {
            return Err(CliError::Usage(format!(
                "{}: not a file of at most {FILE_MAX} bytes",
                what()
            )));
        }
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(CliError::Usage(format!(
                "{}: everybody may access it (mode {mode:04o}); run: chmod 600 {}",
                what(),
                file.display()
            )));
        }
        let mut text = String::new();
        open.take(FILE_MAX).read_to_string(&mut text).doing(what)?;
        Self::parse(&text).map_err(|why| CliError::Usage(format!("{}: {why}", what())))
    }

    /// Parses the text of a secret file.
    fn parse(text: &str) -> Result<Secret, String> {
        let mut lines = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err("must hold exactly one line, SECRET or CLUSTER-ID:SECRET (besides # comments)".into());
        };
        let (cluster, secret) = match line.split_once(':') {
            Some((id, secret)) => (Some(id.trim().parse::<ClusterId>()?), secret.trim()),
            None => (None, line),
        };
        if secret.len() < SECRET_MIN {
            return Err(format!("the secret is shorter than {SECRET_MIN} characters"));
        }
        Ok(Secret {
            cluster,
            secret: secret.as_bytes().into(),
        })
    }

    /// Writes a new secret file, readable by its owner alone; an existing file is an error.
    pub fn write_new(&self, file: &Path) -> Result<(), CliError> {
        let what = || format!("writing secret file {}", file.display());
        let mut open = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .doing(what)?;
        let id = self.cluster.map(|id| format!("{id}:")).unwrap_or_default();
        let text = format!(
            "# The secret of a PolvoFS cluster. Whoever has it may read and write everything there.\n{id}{}\n",
            String::from_utf8_lossy(&self.secret)
        );
        open.write_all(text.as_bytes()).doing(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let secret = Secret::random(ClusterId::random());
        secret.write_new(&file).unwrap();
        let back = Secret::read(&file).unwrap();
        assert_eq!((back.cluster, &back.secret), (secret.cluster, &secret.secret));
        assert!(
            secret.write_new(&file).is_err(),
            "an existing secret is never overwritten"
        );
        assert!(!format!("{secret:?}").contains(std::str::from_utf8(&secret.secret).unwrap()));
    }

    #[test]
    fn a_file_that_everybody_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        Secret::random(ClusterId::random()).write_new(&file).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let error = Secret::read(&file).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn refuses_short_or_many() {
        for bad in [
            "",
            "# only a comment",
            "short",
            "aaaaaaaaaaaaaaaaaaaa\nbbbbbbbbbbbbbbbbbbbbbbbb",
            "noid:aaaaaaaaaaaaaaaaaa",
        ] {
            assert!(Secret::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Secret::parse("# c\n\n  0123456789abcdef \n").unwrap().cluster.is_none());
    }
}
