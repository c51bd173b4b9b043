//! Two threads that spin on shared memory: the fastest way there is to ask another thread and get an answer.

use crate::BenchError;
use crate::samples::Timed;
use polvo_testbed::cores::{MEASURING, SERVING, keep_to};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a message of 4 KiB.
const WORDS: usize = 512;

/// Number of a message that ends the game.
const END: u64 = u64::MAX;

/// A message, and after its words the number that announces it, on lines of their own.
#[repr(align(128))]
struct Box4k {
    words: [AtomicU64; WORDS],
}

struct Mailbox {
    message: Box4k,
    number: Line,
}

#[repr(align(128))]
struct Line(AtomicU64);

impl Mailbox {
    fn new() -> Mailbox {
        Mailbox {
            message: Box4k {
                words: [const { AtomicU64::new(0) }; WORDS],
            },
            number: Line(AtomicU64::new(0)),
        }
    }

    /// A message of up to 64 bytes is announced by its own last word, so that it is one cache line.
    fn announcement(&self, words: usize) -> &AtomicU64 {
        if words <= 8 {
            &self.message.words[words - 1]
        } else {
            &self.number.0
        }
    }

    fn put(&self, words: usize, number: u64) {
        for word in &self.message.words[..words.max(2) - 1] {
            word.store(number, Ordering::Relaxed);
        }
        self.announcement(words).store(number, Ordering::Release);
    }

    /// The message of that number, as the sum of its words; `None` when there are no more.
    fn take(&self, words: usize, number: u64) -> Option<u64> {
        loop {
            match self.announcement(words).load(Ordering::Acquire) {
                there if there == number => break,
                END => return None,
                _ => std::hint::spin_loop(),
            }
        }
        let words = self.message.words[..words - 1].iter();
        Some(words.fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed)))
    }
}

/// `ns` a round trip of `bytes` (a multiple of 8, 16 to 4096) between two spinning threads.
pub fn shared_memory(bytes: usize, ops: usize) -> Result<f64, BenchError> {
    let words = bytes / 8;
    assert!((2..=WORDS).contains(&words), "messages of 16 bytes to 4 KiB");
    let (there, back) = (Mailbox::new(), Mailbox::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _core = keep_to(SERVING);
            let mut number = 1;
            while let Some(sum) = there.take(words, number) {
                std::hint::black_box(sum);
                back.put(words, number);
                number += 1;
            }
        });
        let _core = keep_to(MEASURING);
        // the other thread has begun
        there.put(words, 1);
        std::hint::black_box(back.take(words, 1));
        let mut timed = Timed::new(ops);
        for op in timed.by_ref() {
            let number = op as u64 + 2;
            there.put(words, number);
            std::hint::black_box(back.take(words, number));
        }
        let took = timed.ns_per_op();
        there.put(words, END);
        Ok(took)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn messages_of_all_sizes_go_there_and_back() {
        for bytes in [16, 64, 128, 4096] {
            assert!(super::shared_memory(bytes, 50).unwrap() > 0.0);
        }
    }
}
