//! Flipped bits, systematically: in a pool in which every structure of `docs/media-format.md` is in use, one bit of every
//! byte of every structure is flipped (all bits of the small ones). Each time the check must name the structure and what it
//! belongs to, and nodes that open the pool must serve what was there or an error. Where a flipped bit may go unnoticed is
//! listed in `quiet`, with the reason.

mod harness;

use harness::damage::{Random, for_all};
use harness::power::seed;
use harness::snapshot::{Snapshot, node};
use harness::structures::{ENTRY_TYPES, flipped, media, offline, said, shape};
use harness::world::*;
use polvo_pmem::sim::CrashImage;

/// What nodes serve from these pools is what is in `tree`, or an error.
fn served(images: &[CrashImage], shape: &Shape, tree: &Snapshot) -> Result<(), String> {
    let Ok(mut world) = World::open_images(shape, images, START_NS) else {
        return Ok(());
    };
    for (path, known) in &tree.0 {
        if let Ok(now) = node(&mut world, refer(&known.attr))
            && now != *known
        {
            let path = String::from_utf8_lossy(path);
            return Err(format!("{path} is served with other contents: {now:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_flipped_bit_is_named_and_never_served() {
    let (images, media, tree) = media();
    let clean = said(&offline(&images));
    assert_eq!(clean.len(), 1, "a decided transaction alone: {clean:?}");
    assert_eq!(
        media.entry_types,
        ENTRY_TYPES.collect(),
        "every type of log entry is in use"
    );
    let mut random = Random(seed());
    let mut flips = Vec::new();
    for structure in &media.structures {
        for byte in structure.bytes.clone() {
            let bits = match structure.all_bits {
                true => 0..8,
                false => {
                    let bit = random.below(8);
                    bit..bit + 1
                }
            };
            flips.extend(bits.map(|bit| (structure, byte * 8 + bit)));
        }
    }
    println!(
        "seed {}: {} flipped bits in {} structures",
        seed(),
        flips.len(),
        media.structures.len()
    );
    assert!(flips.len() > 10_000);
    for_all("flipped bits", flips.len(), |n| {
        let (structure, bit) = flips[n];
        let damaged = flipped(&images, structure.pool, bit);
        let said = said(&offline(&damaged));
        let what = format!("bit {} of byte {:#x} of pool {}", bit % 8, bit / 8, structure.pool);
        if !said
            .iter()
            .any(|line| structure.named.iter().all(|name| line.contains(name)))
        {
            return Err(format!("{what}: nobody names {:?}: {said:#?}", structure.named));
        }
        if structure.collected {
            // its part of the transaction is not put in place, which does not stay unnoticed
            let findings = World::open_images(&shape(), &damaged, START_NS).unwrap().check();
            return match findings.is_empty() {
                true => Err(format!("{what}: nobody notices")),
                false => Ok(()),
            };
        }
        served(&damaged, &shape(), &tree).map_err(|why| format!("{what}: {why}"))
    });
}

#[test]
fn where_a_flipped_bit_is_not_noticed_it_does_no_harm() {
    let (images, media, tree) = media();
    let mut random = Random(seed() ^ 0x51);
    let mut flips = Vec::new();
    for quiet in &media.quiet {
        let bytes = quiet.bytes.end - quiet.bytes.start;
        for _ in 0..bytes.min(8) {
            flips.push((quiet, (quiet.bytes.start + random.below(bytes)) * 8 + random.below(8)));
        }
    }
    println!(
        "seed {}: {} flipped bits in {} places",
        seed(),
        flips.len(),
        media.quiet.len()
    );
    for_all("flipped bits in unused bytes", flips.len(), |n| {
        let (quiet, bit) = flips[n];
        let damaged = flipped(&images, quiet.pool, bit);
        said(&offline(&damaged));
        served(&damaged, &shape(), &tree)
            .map_err(|why| format!("bit {} of byte {:#x} ({}): {why}", bit % 8, bit / 8, quiet.why))
    });
}

/// The bytes of files have no checksum: whoever keeps them on such media has to take care of them.
#[test]
fn a_flipped_bit_of_file_data_is_not_noticed() {
    let (images, _, tree) = media();
    let mut world = World::open_images(&shape(), &images, START_NS).unwrap();
    let long = refer(&tree.0[&b"/far/long"[..]].attr);
    let map = world.of(long).file_map(long, 0).unwrap();
    let extent = map.extents.iter().find(|e| e.len >= 4096).unwrap();
    let (_, at) = world.locate(extent.gpa);
    let damaged = flipped(&images, 1, at * 8 + 3);
    assert_eq!(said(&offline(&damaged)), said(&offline(&images)));
    served(&damaged, &shape(), &tree).unwrap_err();
}
