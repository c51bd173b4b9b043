//! A reader: a client that only looks, at the same few things again and again, so that it has tokens of them nearly all the time.
//!
//! It ends when the work of the others has ended, or its quota is used up. What it looks at changes now and then.

use crate::actor::Actor;
use crate::operation::{Answer, Operation};
use std::cell::Cell;
use std::time::Duration;

/// Most looks of a reader.
pub const LOOKS_MAX: u32 = 500;
/// Things that it looks at.
const GAZE: usize = 3;
/// Its longest pauses: 1 ms, and each twice the one before, so many times.
const PAUSES: u64 = 8;

impl Actor {
    /// Looks until the quota is used up, or nobody works any more.
    pub async fn read_on(&mut self, quota: &Cell<u32>) {
        let mut gaze: Vec<Operation> = Vec::new();
        while quota.get() > 0 {
            if self.shared.is_work_over.get() {
                quota.set(0);
                return;
            }
            quota.set(quota.get() - 1);
            let longest_us = 1000 << self.rng.below(PAUSES);
            let pause = self.rng.below(longest_us);
            tokio::time::sleep(Duration::from_micros(pause)).await;
            if gaze.len() < GAZE {
                let look = self.draw_look();
                gaze.push(look);
            }
            let at = self.rng.below(gaze.len() as u64) as usize;
            let outcome = self.perform(gaze[at].clone()).await;
            match (&gaze[at], outcome) {
                // what it has found it looks at, too
                (Operation::Lookup { .. }, Ok(Answer::Inode(inode, _))) if self.rng.percent(10) => {
                    gaze[at] = Operation::GetAttr { inode };
                }
                (Operation::ReadDir { .. }, _) => drop(gaze.swap_remove(at)),
                (_, Err(_)) if self.rng.percent(20) => drop(gaze.swap_remove(at)),
                _ if self.rng.percent(3) => drop(gaze.swap_remove(at)),
                _ => {}
            }
        }
    }

    fn draw_look(&mut self) -> Operation {
        let (dir, name) = (self.directory(), self.name());
        match (self.rng.below(100), self.any_inode()) {
            (0..4, _) => Operation::ReadDir { dir },
            (4..30, Some(inode)) => Operation::GetAttr { inode },
            (30..40, _) => Operation::GetAttr { inode: dir },
            _ => Operation::Lookup { dir, name },
        }
    }
}
