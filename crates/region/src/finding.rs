//! Something wrong on the media, or put right there, as it is told to people.

use polvo_format::Ino;

/// A finding of a check, a recovery or a repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// inode, if about one
    pub ino: Option<Ino>,
    /// structure and what is wrong with it
    pub what: String,
}
