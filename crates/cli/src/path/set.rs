//! `polvo set`

use super::inode_of;
use crate::args::SetArgs;
use crate::connect::{Location, with_client};
use crate::output::print;
use crate::{CliError, Context};
use polvo_client::LocalClient;
use polvo_format::{Attr, FileKind};
use polvo_proto::{FsError, InodeRef, Placement, SetWish, XattrMode};
use std::ffi::OsString;

/// What is to be set: extended attributes and their values.
#[derive(Debug, PartialEq, Eq)]
struct Settings(Vec<(&'static str, String)>);

impl Settings {
    /// From the words behind the directory.
    fn parse(words: &[OsString]) -> Result<Settings, CliError> {
        let refused = |why: String| CliError::Usage(format!("{why}; `polvo set --help` says what can be set"));
        let mut placement = None;
        let mut regions: Vec<&str> = Vec::new();
        for word in words {
            let text = word.to_str().ok_or_else(|| refused(format!("{word:?} is no text")))?;
            match text.split_once('=') {
                Some(("placement", _)) if placement.is_some() => {
                    return Err(refused("placement is given twice".into()));
                }
                Some(("placement", value @ ("hash" | "local"))) => placement = Some(value),
                Some(("placement", value)) => {
                    return Err(refused(format!("placement {value:?} must be hash or local")));
                }
                _ => regions.push(text),
            }
        }
        let regions = match &regions[..] {
            [] => None,
            ["default"] => Some("default".to_owned()),
            words => Some(words.join(" ").parse::<SetWish>().map_err(refused)?.to_string()),
        };
        let regions = regions.map(|value| (Placement::REGIONS, value));
        let placement = placement.map(|value| (Placement::NODE, value.to_owned()));
        Ok(Settings(regions.into_iter().chain(placement).collect()))
    }

    async fn apply(&self, client: &LocalClient, dir: InodeRef) -> Result<(), FsError> {
        for (name, value) in &self.0 {
            client
                .set_xattr(dir, name.as_bytes(), value.as_bytes(), XattrMode::Any)
                .await?;
        }
        Ok(())
    }
}

/// Where new inodes of a directory go, or where anything else is.
pub(super) struct Placed {
    /// Region set.
    pub regions: String,
    /// How their node is chosen; of directories.
    pub placement: Option<String>,
}

impl Placed {
    pub(super) async fn of(client: &LocalClient, attr: &Attr) -> Result<Placed, FsError> {
        let value = async |name: &str| {
            let value = client.get_xattr(inode_of(attr), name.as_bytes()).await?;
            Ok::<_, FsError>(String::from_utf8_lossy(&value).into_owned())
        };
        Ok(Placed {
            regions: value(Placement::REGIONS).await?,
            placement: match attr.kind {
                FileKind::Directory => Some(value(Placement::NODE).await?),
                _ => None,
            },
        })
    }
}

/// Runs the command.
pub fn set(args: &SetArgs) -> Result<(), CliError> {
    let place = Location::parse(&args.dir)?;
    let settings = Settings::parse(&args.settings)?;
    with_client(&args.cluster, place.authority.clone(), "set", |_, client| async move {
        let attr = client.walk(&place.path, true).await.doing(|| place.shown())?;
        if attr.kind != FileKind::Directory {
            return Err(FsError::NotDirectory).doing(|| place.shown());
        }
        settings
            .apply(&client, inode_of(&attr))
            .await
            .doing(|| format!("setting {}", place.shown()))?;
        let placed = Placed::of(&client, &attr).await.doing(|| place.shown())?;
        let placement = placed.placement.unwrap_or_default();
        print(format!(
            "{}: new files {} placement={placement}\n",
            place.shown(),
            placed.regions
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Settings, String> {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        Settings::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_regions_placement_or_both() {
        let settings = |list: &[(&'static str, &str)]| {
            Ok(Settings(
                list.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            ))
        };
        assert_eq!(parse(""), settings(&[]));
        assert_eq!(parse("default"), settings(&[(Placement::REGIONS, "default")]));
        assert_eq!(parse("placement=local"), settings(&[(Placement::NODE, "local")]));
        assert_eq!(
            parse("durability=async placement=hash replicas=2"),
            settings(&[
                (Placement::REGIONS, "replicas=2 durability=async"),
                (Placement::NODE, "hash")
            ])
        );
        for (words, said) in [
            ("replicas=0", "1 to 5"),
            ("placement=there", "must be hash or local"),
            ("placement=hash placement=local", "twice"),
            ("default replicas=2", "\"default\""),
            ("copies=2", "replicas=NUMBER"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(said) && error.contains("polvo set --help"), "{error}");
        }
    }
}
