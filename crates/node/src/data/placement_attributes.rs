//! Where new inodes of a directory go, as two extended attributes of the file system's own: `polvo.placement` and `polvo.regions`.

use crate::names::permission;
use crate::request::context::RequestContext;
use polvo_format::FileKind;
use polvo_proto::{ClusterMap, FsError, InodeRef, Placement, reply};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlacementAttribute {
    /// `hash` or `local`: at which node.
    Node,
    /// As [`polvo_proto::SetWish`] is read, or `default`: in regions of which set. Of what is no directory it says where it is.
    Regions,
}

impl PlacementAttribute {
    /// By the attribute's name.
    pub(super) fn named(name: &[u8]) -> Option<PlacementAttribute> {
        match str::from_utf8(name) {
            Ok(Placement::NODE) => Some(PlacementAttribute::Node),
            Ok(Placement::REGIONS) => Some(PlacementAttribute::Regions),
            _ => None,
        }
    }

    /// The placement with this value.
    fn over(self, placement: Placement, value: &[u8], map: &ClusterMap) -> Result<Placement, FsError> {
        match (self, value) {
            (PlacementAttribute::Node, b"hash" | b"local") => Ok(Placement {
                local: value == b"local",
                ..placement
            }),
            (PlacementAttribute::Node, _) => Err(FsError::Invalid("polvo.placement is \"hash\" or \"local\"".into())),
            (PlacementAttribute::Regions, b"default") => Ok(Placement { set: None, ..placement }),
            (PlacementAttribute::Regions, _) => {
                let wish = str::from_utf8(value).map_err(|_| "not a text".to_owned());
                let set = wish.and_then(str::parse).and_then(|wish| map.find_set(wish));
                let set = set.map_err(|why| FsError::Invalid(format!("polvo.regions: {why}")))?;
                Ok(Placement { set, ..placement })
            }
        }
    }

    /// The value of it.
    fn of(self, placement: Placement, map: &ClusterMap) -> String {
        match self {
            PlacementAttribute::Node if placement.local => "local".into(),
            PlacementAttribute::Node => "hash".into(),
            PlacementAttribute::Regions => match placement.set {
                Some(set) => set.to_string(),
                None => map.regions[0].region_set().to_string(),
            },
        }
    }
}

impl RequestContext<'_> {
    pub(super) async fn placement_attribute(
        &self,
        inode: InodeRef,
        attribute: PlacementAttribute,
    ) -> Result<Vec<u8>, FsError> {
        let region = inode.ino.region();
        let placement = self
            .on(region, |r| {
                let (attr, _) = r.attr(inode.ino, Some(inode.generation))?;
                match attr.kind {
                    FileKind::Directory => r.placement(inode).map(Some),
                    _ => Ok(None),
                }
            })
            .await?;
        let map = self.node.map();
        match (placement, attribute) {
            (Some(placement), _) => Ok(attribute.of(placement, &map).into_bytes()),
            (None, PlacementAttribute::Node) => Err(FsError::NoAttribute),
            (None, PlacementAttribute::Regions) => {
                let info = map.region(region).ok_or(FsError::WrongEpoch)?;
                Ok(info.region_set().to_string().into_bytes())
            }
        }
    }

    /// For the directory's owner.
    pub(super) async fn set_placement_attribute(
        &self,
        dir: InodeRef,
        attribute: PlacementAttribute,
        value: &[u8],
    ) -> Result<reply::Attr, FsError> {
        let map = self.node.map();
        let (attr, tail) = self
            .on(dir.ino.region(), |r| {
                self.check(r, dir, |attr, _| permission::owner(self.cred, attr))?;
                let placement = attribute.over(r.placement(dir)?, value, &map)?;
                r.set_placement(dir, placement, self.now_ns())
            })
            .await?;
        Ok(reply::Attr { attr, tail })
    }
}
