//! `polvo://host:port/path`: a path in a cluster that is named by the address of one of its nodes.

use std::fmt;
use std::str::FromStr;

/// A parsed `polvo://` address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// `host:port` of a node.
    pub authority: String,
    /// Absolute path in the cluster, any bytes; always begins with `/`.
    pub path: Vec<u8>,
}

/// What a `polvo://` address begins with.
pub const SCHEME: &str = "polvo://";

impl Url {
    /// Parses an address whose path may be any bytes.
    ///
    /// # Errors
    /// A text that says what is wrong and how to write it.
    pub fn parse(text: &[u8]) -> Result<Url, String> {
        let why = |what: &str| {
            format!(
                "{:?}: {what}; write polvo://HOST:PORT/PATH",
                String::from_utf8_lossy(text)
            )
        };
        let rest = text
            .strip_prefix(SCHEME.as_bytes())
            .ok_or_else(|| why("does not begin with polvo://"))?;
        let (authority, path) = match rest.iter().position(|b| *b == b'/') {
            Some(at) => rest.split_at(at),
            None => (rest, &b"/"[..]),
        };
        let authority = std::str::from_utf8(authority).map_err(|_| why("the host name is not UTF-8"))?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| why("no port"))?;
        if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
            return Err(why("no host name"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(why("an IPv6 address goes in brackets"));
        }
        match port.parse::<u16>() {
            Ok(1..) => Ok(Url {
                authority: authority.into(),
                path: path.into(),
            }),
            _ => Err(why("the port must be 1 to 65535")),
        }
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Url::parse(text.as_bytes())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.authority, String::from_utf8_lossy(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_address_and_path() {
        for (text, authority, path) in [
            ("polvo://host:7400/a/b", "host:7400", "/a/b"),
            ("polvo://host:7400", "host:7400", "/"),
            ("polvo://host:7400/", "host:7400", "/"),
            ("polvo://[::1]:7400/x", "[::1]:7400", "/x"),
            ("polvo://10.0.0.1:1/a b:c@d", "10.0.0.1:1", "/a b:c@d"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(
                (url.authority.as_str(), url.path.as_slice()),
                (authority, path.as_bytes())
            );
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, word) in [
            ("/a", "begin"),
            ("http://h:1/", "begin"),
            ("polvo://host/a", "port"),
            ("polvo://:1/", "host"),
            ("polvo://h:0/", "65535"),
            ("polvo://h:99999/", "65535"),
            ("polvo://::1:7400/", "brackets"),
            ("polvo://u@h:1/", "host"),
        ] {
            let why = text.parse::<Url>().unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_prints_back(text in ".{0,40}") {
            if let Ok(url) = text.parse::<Url>() {
                proptest::prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
            }
            let _ = format!("polvo://{text}").parse::<Url>();
        }
    }
}
