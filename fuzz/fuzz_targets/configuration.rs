//! A node's configuration, a cluster's address, a secret's owner.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_cli::{config::Config, url::Url};
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let _ = Url::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Config::parse(text, Path::new("/etc/polvo/polvod.toml"));
    }
});
