//! What the kernel asks a mount for.
#![no_main]
use libfuzzer_sys::fuzz_target;
use polvo_fusedev::{Malformed, Operation, Request};
use std::os::unix::ffi::OsStrExt;

fuzz_target!(|bytes: &[u8]| {
    // a reader's buffer begins at a multiple of 8 bytes
    let mut buffer = vec![0u64; bytes.len().div_ceil(8)];
    for (word, piece) in buffer.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..piece.len()].copy_from_slice(piece);
        *word = u64::from_ne_bytes(whole);
    }
    let aligned = zerocopy::IntoBytes::as_bytes(&buffer[..]);
    match Request::decode(&aligned[..bytes.len()]) {
        Ok(request) => {
            assert_eq!(request.header.len as usize, bytes.len());
            if let Operation::Lookup(name) | Operation::Unlink(name) | Operation::Mkdir(_, name) = request.operation {
                assert!(!name.is_empty() && !name.as_bytes().iter().any(|b| matches!(b, 0 | b'/')));
            }
        }
        Err(Malformed::Header) => {}
        Err(Malformed::Operation { opcode, .. }) => assert_eq!(opcode.to_ne_bytes(), bytes[4..8]),
    }
});
