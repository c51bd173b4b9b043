//! A word in a configuration that names nothing there is.

/// No medium or persistence has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{given}` is no {kind}; one of: {known}")]
pub struct UnknownName {
    /// What it should have been.
    pub kind: &'static str,
    /// The word.
    pub given: String,
    /// Valid words.
    pub known: &'static str,
}
