//! Region sets: how many replicas, and how durable a change is before it is answered; and which set a directory's new inodes go to.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// When a change of a region with mirrors is answered (Mojim, Table 3.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Durability {
    /// Every mirror in the set has it, where a mirror that takes over finds it.
    #[default]
    Sync,
    /// The same, and it is in the mirrors' persistence domain.
    SyncFlush,
    /// The primary's pool has it. Mirrors follow within a bound; what a session has asked to be made durable they have, and what is
    /// part of a transaction over several regions.
    Async,
}

impl Durability {
    /// All of them.
    pub const ALL: [Durability; 3] = [Durability::Sync, Durability::SyncFlush, Durability::Async];
}

impl Display for Durability {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Sync => "sync",
            Durability::SyncFlush => "sync-flush",
            Durability::Async => "async",
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(word: &str) -> Result<Durability, String> {
        let found = Durability::ALL.into_iter().find(|mode| mode.to_string() == word);
        found.ok_or_else(|| format!("{word:?} must be async, sync or sync-flush"))
    }
}

/// What the regions of a set have alike. A cluster has one or several, each with as many regions at each node, given when it is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct RegionSet {
    /// How many replicas each region is to have, the primary counted: 1 to [`RegionSet::REPLICAS_MAX`]. 0: a map made before it was kept
    /// there does not say.
    pub replicas: u8,
    /// When a change is answered.
    pub durability: Durability,
}

impl RegionSet {
    /// Most replicas of a region.
    pub const REPLICAS_MAX: u8 = 5;
    /// Where the replicas lie in the byte; below them, the durability.
    const REPLICAS_AT: u32 = 2;
}

impl Default for RegionSet {
    fn default() -> Self {
        RegionSet {
            replicas: 1,
            durability: Durability::default(),
        }
    }
}

impl From<RegionSet> for u8 {
    fn from(set: RegionSet) -> u8 {
        debug_assert!(set.replicas <= RegionSet::REPLICAS_MAX, "{set}");
        set.durability as u8 | set.replicas << RegionSet::REPLICAS_AT
    }
}

impl TryFrom<u8> for RegionSet {
    type Error = &'static str;

    fn try_from(byte: u8) -> Result<RegionSet, &'static str> {
        let replicas = byte >> RegionSet::REPLICAS_AT;
        let durability = Durability::ALL.into_iter().find(|mode| *mode as u8 == byte & 3);
        match durability {
            Some(durability) if replicas <= RegionSet::REPLICAS_MAX => Ok(RegionSet { replicas, durability }),
            _ => Err("unknown region set"),
        }
    }
}

impl Display for RegionSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.replicas {
            1 => f.write_str("replicas=1"),
            replicas => write!(f, "replicas={replicas} durability={}", self.durability),
        }
    }
}

/// What is wished of regions; the rest is left open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetWish {
    /// So many replicas.
    pub replicas: Option<u8>,
    /// Answered then.
    pub durability: Option<Durability>,
}

impl SetWish {
    /// The set that it makes of another one.
    pub fn over(self, set: RegionSet) -> RegionSet {
        RegionSet {
            replicas: self.replicas.unwrap_or(set.replicas),
            durability: self.durability.unwrap_or(set.durability),
        }
    }

    /// Is a set as wished? Regions without copies are for those alone who ask for one replica; when copies have a change does not matter
    /// there.
    pub(crate) fn is_met_by(self, set: RegionSet) -> bool {
        let is_durability = |set: RegionSet| self.durability.is_none_or(|durability| durability == set.durability);
        match (self.replicas, set.replicas) {
            (Some(1), 1) => true,
            (None, 1) => false,
            (None, _) => is_durability(set),
            (Some(replicas), of_set) => replicas == of_set && is_durability(set),
        }
    }
}

impl FromStr for SetWish {
    type Err = String;

    /// `replicas=2 durability=async`: either or both, with spaces or commas between.
    fn from_str(words: &str) -> Result<SetWish, String> {
        let mut wish = SetWish::default();
        for word in words.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("replicas", number)) if wish.replicas.is_none() => {
                    let replicas = number.parse().ok();
                    let replicas = replicas.filter(|replicas| (1..=RegionSet::REPLICAS_MAX).contains(replicas));
                    let most = RegionSet::REPLICAS_MAX;
                    wish.replicas = Some(replicas.ok_or_else(|| format!("{number:?} replicas: must be 1 to {most}"))?);
                }
                Some(("durability", mode)) if wish.durability.is_none() => wish.durability = Some(mode.parse()?),
                Some(("replicas" | "durability", _)) => return Err(format!("{word:?}: that has been given before")),
                _ => return Err(format!("{word:?}: must be replicas=NUMBER or durability=MODE")),
            }
        }
        match wish == SetWish::default() {
            true => Err("nothing is given: replicas=NUMBER, durability=MODE or both".into()),
            false => Ok(wish),
        }
    }
}

impl Display for SetWish {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let replicas = self.replicas.map(|replicas| format!("replicas={replicas}"));
        let durability = self.durability.map(|mode| format!("durability={mode}"));
        let words: Vec<String> = replicas.into_iter().chain(durability).collect();
        f.write_str(&words.join(" "))
    }
}

/// Where new inodes of a directory go; inherited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct Placement {
    /// To the creator's own node while it has space; else by hash, to the less full of two candidates.
    pub local: bool,
    /// To regions of that set; `None`: the cluster's default.
    pub set: Option<RegionSet>,
}

impl Placement {
    /// The extended attribute of a directory that says which regions what is made in it goes to.
    pub const REGIONS: &str = "polvo.regions";
    /// The one that says which node.
    pub const NODE: &str = "polvo.placement";
}

impl From<Placement> for u8 {
    /// As it is on the media and in messages. Bit 0: local; above it the region set, 0 for the default.
    fn from(placement: Placement) -> u8 {
        u8::from(placement.local) | placement.set.map_or(0, u8::from) << 1
    }
}

impl TryFrom<u8> for Placement {
    type Error = &'static str;

    fn try_from(byte: u8) -> Result<Placement, &'static str> {
        let local = byte & 1 != 0;
        match RegionSet::try_from(byte >> 1)? {
            set if set.replicas > 0 => Ok(Placement { local, set: Some(set) }),
            _ if byte > 1 => Err("a region set without replicas"),
            _ => Ok(Placement { local, set: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_one_placement_or_none() {
        let mut valid = 0;
        for byte in 0..=u8::MAX {
            if let Ok(placement) = Placement::try_from(byte) {
                assert_eq!(u8::from(placement), byte);
                valid += 1;
            }
        }
        let modes = Durability::ALL.len();
        assert_eq!(valid, 2 * (1 + modes * usize::from(RegionSet::REPLICAS_MAX)));
        assert_eq!(
            Placement::try_from(0),
            Ok(Placement::default()),
            "as it was before there were sets"
        );
        let local = Placement { local: true, set: None };
        assert_eq!(Placement::try_from(1), Ok(local));
    }

    #[test]
    fn a_set_of_a_map_that_says_no_number_is_its_durability() {
        for mode in Durability::ALL {
            let set = RegionSet {
                replicas: 0,
                durability: mode,
            };
            assert_eq!(u8::from(set), mode as u8);
            assert_eq!(RegionSet::try_from(mode as u8), Ok(set));
        }
        assert!(RegionSet::try_from(3).is_err());
        assert!(RegionSet::try_from(0x80).is_err());
    }

    #[test]
    fn wishes_are_read_and_said() {
        for text in ["replicas=2", "durability=async", "replicas=3 durability=sync-flush"] {
            let wish: SetWish = text.parse().unwrap();
            assert_eq!(wish.to_string(), text);
        }
        assert_eq!(
            " durability=sync,replicas=2 ".parse::<SetWish>(),
            "replicas=2 durability=sync".parse()
        );
        for (text, said) in [
            ("", "nothing is given"),
            ("replicas=0", "1 to 5"),
            ("replicas=6", "1 to 5"),
            ("replicas=many", "1 to 5"),
            ("replicas=2 replicas=3", "before"),
            ("durability=maybe", "async, sync or sync-flush"),
            ("copies=2", "replicas=NUMBER or durability=MODE"),
            ("replicas", "replicas=NUMBER or durability=MODE"),
        ] {
            let error = text.parse::<SetWish>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
