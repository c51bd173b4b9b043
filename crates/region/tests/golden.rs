//! Pools of the present media format, kept: `golden/node-N` are the pools of `structures::furnished`, in which every structure and
//! every type of log entry is in use, as they were written when the format got its version. Whoever changes what the bytes mean
//! without raising the version cannot read them.
//!
//! A line is the offset of 64 bytes that are not zero, and the bytes; both hexadecimal.

mod harness;

use harness::snapshot::{difference, snapshot};
use harness::structures::{furnished, offline, said, shape};
use harness::world::*;
use polvo_format::FORMAT_VERSION;
use polvo_pmem::sim::CrashImage;
use std::fmt::Write;
use std::path::PathBuf;

const LINE: usize = 64;
const CURE: &str = "if the format of the media has changed, raise FORMAT_VERSION, say so in docs/media-format.md, and run: \
                    BLESS=1 cargo test -p polvo-region --test golden";

fn file(node: usize) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/node-{node}"))
}

fn to_text(image: &CrashImage) -> String {
    let mut text = format!("format {FORMAT_VERSION}, {} bytes\n", image.len());
    for (n, line) in image.to_vec().chunks(LINE).enumerate() {
        if line.iter().any(|byte| *byte != 0) {
            write!(text, "{:x} ", n * LINE).unwrap();
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
    }
    text
}

fn to_image(text: &str) -> CrashImage {
    let mut bytes = vec![0; shape().pool_len as usize];
    for line in text.lines().skip(1) {
        let (offset, hex) = line.split_once(' ').expect("offset and bytes");
        let offset = usize::from_str_radix(offset, 16).expect("an offset");
        for n in 0..LINE {
            bytes[offset + n] = u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).expect("a byte");
        }
    }
    CrashImage::from_bytes(&bytes)
}

#[test]
fn pools_that_were_kept_are_what_pools_of_today_are() {
    let today = furnished();
    if std::env::var_os("BLESS").is_some() {
        for (node, image) in today.iter().enumerate() {
            std::fs::create_dir_all(file(node).parent().unwrap()).unwrap();
            std::fs::write(file(node), to_text(image)).unwrap();
        }
    }
    let text =
        |node| std::fs::read_to_string(file(node)).unwrap_or_else(|e| panic!("{}: {e}; {CURE}", file(node).display()));
    let kept: Vec<CrashImage> = (0..today.len()).map(|node| to_image(&text(node))).collect();
    let first = format!("format {FORMAT_VERSION},");
    assert!(text(0).starts_with(&first), "kept are pools of another version; {CURE}");

    assert_eq!(said(&offline(&kept)), said(&offline(&today)), "{CURE}");
    let tree = |images: &[CrashImage]| {
        let mut world = World::open_images(&shape(), images, START_NS).unwrap_or_else(|e| panic!("{e}; {CURE}"));
        world.redispatch();
        snapshot(&mut world).unwrap_or_else(|e| panic!("{e}; {CURE}"))
    };
    let (kept, today) = (tree(&kept), tree(&today));
    assert!(kept == today, "{}\n{CURE}", difference(&today, &kept));
    // not the same emptiness twice
    assert_eq!(kept.0[&b"/dir/compact"[..]].attr.size, 10);
    assert!(
        kept.0.contains_key(&b"/dir/late"[..]),
        "decided, and dispatched at the start"
    );
}
