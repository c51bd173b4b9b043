//! Where a listener can be found.

use crate::FabricError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of a listener: `tcp://host:port`, `shm:///path/to.sock`, `sim://name`.
///
/// ```
/// use polvo_fabric::Address;
/// let addr: Address = "tcp://localhost:7400".parse()?;
/// assert_eq!(addr, Address::Tcp("localhost:7400".into()));
/// assert_eq!(addr.to_string(), "tcp://localhost:7400");
/// # Ok::<(), polvo_fabric::FabricError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Address {
    /// `host:port`
    Tcp(String),
    /// Path of the UNIX socket by which peers on one host meet.
    Shm(PathBuf),
    /// Name of a simulated host.
    Sim(String),
}

impl Address {
    /// Name of the provider that reaches it.
    pub fn provider(&self) -> &'static str {
        self.into()
    }
}

impl FromStr for Address {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        let wrong = |why: &str| FabricError::Address {
            addr: text.to_owned(),
            why: why.to_owned(),
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("expected tcp://host:port, shm:///path or sim://name"))?;
        match scheme {
            "tcp" => {
                let (host, port) = rest
                    .rsplit_once(':')
                    .ok_or_else(|| wrong("no port given (tcp://host:port)"))?;
                if host.is_empty() {
                    return Err(wrong("no host given (tcp://host:port)"));
                }
                if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
                    return Err(wrong("an IPv6 address goes in brackets (tcp://[::1]:port)"));
                }
                if port.parse::<u16>().is_err() {
                    return Err(wrong("the port is not a number from 0 to 65535"));
                }
                Ok(Address::Tcp(rest.to_owned()))
            }
            "shm" => {
                if !rest.starts_with('/') {
                    return Err(wrong("the path must be absolute (shm:///path/to.sock)"));
                }
                Ok(Address::Shm(PathBuf::from(rest)))
            }
            "sim" if rest.is_empty() => Err(wrong("no name given (sim://name)")),
            "sim" => Ok(Address::Sim(rest.to_owned())),
            _ => Err(wrong("unknown scheme (tcp, shm, sim)")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host_port) => write!(f, "tcp://{host_port}"),
            Address::Shm(path) => write!(f, "shm://{}", path.display()),
            Address::Sim(name) => write!(f, "sim://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_prints_as_it_was_parsed() {
        for text in [
            "tcp://a.b:1",
            "tcp://[::1]:7400",
            "shm:///run/polvo/n0.sock",
            "sim://node-2",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in [
            "",
            "tcp",
            "tcp://",
            "tcp://host",
            "tcp://:7",
            "tcp://h:x",
            "tcp://h:70000",
            "tcp://::1:7",
            "shm://x",
            "sim://",
            "udp://h:1",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(
                matches!(&error, FabricError::Address { addr, .. } if addr == text),
                "{text}: {error}"
            );
        }
    }
}
