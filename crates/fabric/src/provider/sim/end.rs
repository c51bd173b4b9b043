//! One end of a simulated queue pair.

use super::network::Network;
use crate::access::Want;
use crate::provider::{Completion, Polling, Posted, Progress, Provider};
use crate::queue_pair::check_batch;
use crate::wait::{Directions, OpId, Shared};
use crate::{Event, FabricError, MemoryRegions, Remote, Role, Verb};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::time::Instant;

/// A verb with memory of its own.
pub(super) enum Owned {
    Read {
        from: Remote,
        len: usize,
    },
    Write {
        to: Remote,
        bytes: Vec<u8>,
        imm: Option<u32>,
    },
    CompareSwap {
        at: Remote,
        expect: u64,
        new: u64,
    },
    FetchAdd {
        at: Remote,
        add: u64,
    },
    Flush {
        at: Remote,
        len: u64,
    },
    Send {
        bytes: Vec<u8>,
    },
}

impl Owned {
    fn of(verb: &Verb<'_>) -> Owned {
        match verb {
            Verb::Read { from, into } => Owned::Read {
                from: *from,
                len: into.len(),
            },
            Verb::ReadInto { from, into } => Owned::Read {
                from: *from,
                len: into.len as usize,
            },
            Verb::WriteFrom { to, from } => {
                let mut bytes = vec![0; from.len as usize];
                from.memory.read(from.offset, &mut bytes);
                Owned::Write {
                    to: *to,
                    bytes,
                    imm: None,
                }
            }
            Verb::Write { to, bytes } => Owned::Write {
                to: *to,
                bytes: bytes.to_vec(),
                imm: None,
            },
            Verb::WriteImm { to, bytes, imm } => Owned::Write {
                to: *to,
                bytes: bytes.to_vec(),
                imm: Some(*imm),
            },
            Verb::CompareSwap { at, expect, new, .. } => Owned::CompareSwap {
                at: *at,
                expect: *expect,
                new: *new,
            },
            Verb::FetchAdd { at, add, .. } => Owned::FetchAdd { at: *at, add: *add },
            Verb::Flush { at, len } => Owned::Flush { at: *at, len: *len },
            Verb::Send { bytes } => Owned::Send { bytes: bytes.to_vec() },
        }
    }
}

/// What a verb found, for its destination.
pub(super) enum Found {
    Bytes(Vec<u8>),
    Word(u64),
}

/// What travels.
pub(super) enum Message {
    /// A batch; without an operation it is not signaled.
    Batch {
        op: Option<OpId>,
        completion: Completion,
        verbs: Vec<Owned>,
    },
    /// Its completion.
    Completion {
        op: Option<OpId>,
        result: Result<(), FabricError>,
        found: Vec<Found>,
    },
    /// The peer has closed.
    Closed { why: String },
}

/// One end of a simulated queue pair.
pub(super) struct End {
    pub(super) shared: Shared,
    regions: Arc<MemoryRegions>,
    network: Network,
    /// The host it is on, and the peer's.
    pub(super) host: Rc<str>,
    pub(super) peer_host: Rc<str>,
    peer: RefCell<Weak<End>>,
    /// When the last message that is on its way here arrives, so that none overtakes it.
    pub(super) latest: Cell<Option<Instant>>,
}

impl End {
    pub(super) fn new(
        network: &Network,
        host: &Rc<str>,
        peer_host: &Rc<str>,
        peer: Role,
        regions: &Arc<MemoryRegions>,
    ) -> Rc<End> {
        Rc::new(End {
            shared: Shared::new(peer, format!("sim://{peer_host}")),
            regions: regions.clone(),
            network: network.clone(),
            host: host.clone(),
            peer_host: peer_host.clone(),
            peer: RefCell::default(),
            latest: Cell::default(),
        })
    }

    pub(super) fn join(a: &Rc<End>, b: &Rc<End>) {
        *a.peer.borrow_mut() = Rc::downgrade(b);
        *b.peer.borrow_mut() = Rc::downgrade(a);
    }

    fn send(&self, message: Message) {
        self.network
            .send(&self.host, &self.peer_host, self.peer.borrow().clone(), message);
    }

    /// The connection has ended at this end.
    pub(super) fn lose(&self, why: &str) {
        self.shared.lose(why);
    }

    /// A message arrives.
    pub(super) fn receive(&self, message: Message) {
        if self.shared.is_closed() {
            return;
        }
        self.shared.note_activity();
        match message {
            Message::Closed { why } => self.lose(&why),
            Message::Batch { op, completion, verbs } => {
                let mut found = Vec::new();
                let result = verbs.into_iter().try_for_each(|verb| self.serve(verb, &mut found));
                let wanted = match completion {
                    Completion::Signaled => true,
                    Completion::Unsignaled => result.is_err(),
                    Completion::Unreported => false,
                };
                let ends = match (&result, completion) {
                    (Err(error), Completion::Unsignaled) => Some(format!("an unsignaled operation failed: {error}")),
                    _ => None,
                };
                if wanted {
                    self.send(Message::Completion { op, result, found });
                }
                // what was posted behind it relies on it
                if let Some(why) = ends {
                    self.close(&why);
                }
            }
            Message::Completion {
                op: Some(op),
                result,
                found,
            } => {
                let mut found = found.into_iter().enumerate();
                let filled: Result<(), _> = found.try_for_each(|(which, found)| match found {
                    Found::Bytes(bytes) => self.shared.fill(op, which, bytes.into()),
                    Found::Word(word) => self.shared.fill_word(op, which, word),
                });
                filled
                    .and_then(|()| self.shared.complete(op, result))
                    .expect("the simulator answers what was asked");
            }
            Message::Completion { op: None, result, .. } => {
                if let Err(error) = result {
                    self.close(&format!("an unsignaled operation failed: {error}"));
                }
            }
        }
    }

    fn serve(&self, verb: Owned, found: &mut Vec<Found>) -> Result<(), FabricError> {
        let resolve = |at: Remote, len: u64, want| self.regions.resolve(at.key.0, at.offset, len, want);
        self.shared.count_served();
        match verb {
            Owned::Read { from, len } => {
                let (memory, at) = resolve(from, len as u64, Want::Read)?;
                let mut bytes = vec![0; len];
                memory.read(at, &mut bytes);
                found.push(Found::Bytes(bytes));
            }
            Owned::Write { to, bytes, imm } => {
                let is_bare = imm.is_some() && to.key.0 == 0 && bytes.is_empty();
                if !is_bare {
                    let (memory, at) = resolve(to, bytes.len() as u64, Want::Write)?;
                    memory.write(at, &bytes);
                }
                if let Some(imm) = imm {
                    self.event(Event::Immediate(imm));
                }
            }
            Owned::CompareSwap { at, expect, new } => {
                let (memory, at) = resolve(at, 8, Want::Atomic)?;
                found.push(Found::Word(memory.compare_swap(at, expect, new)));
            }
            Owned::FetchAdd { at, add } => {
                let (memory, at) = resolve(at, 8, Want::Atomic)?;
                found.push(Found::Word(memory.fetch_add(at, add)));
            }
            Owned::Flush { at, len } => {
                let (memory, at) = resolve(at, len, Want::Flush)?;
                memory.persist(at, len);
            }
            Owned::Send { bytes } => self.event(Event::Message(bytes)),
        }
        Ok(())
    }

    fn event(&self, event: Event) {
        if self.shared.has_room_for_events() {
            self.shared.push_event(event);
        } else {
            self.close("more events than anybody here takes");
        }
    }
}

impl Provider for End {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn post(&self, verbs: &mut [Verb<'_>], completion: Completion) -> Result<Posted, FabricError> {
        let signaled = completion == Completion::Signaled;
        check_batch(verbs)?;
        if verbs.is_empty() {
            return Ok(Posted::Done);
        }
        let reading = verbs.iter().map(Verb::reading).sum();
        if signaled && !self.shared.has_room_for(reading) {
            return Ok(Posted::Full);
        }
        let owned = verbs.iter().map(Owned::of).collect();
        let op = signaled.then(|| self.shared.begin(verbs));
        self.send(Message::Batch {
            op,
            completion,
            verbs: owned,
        });
        Ok(op.map_or(Posted::Done, Posted::Pending))
    }

    fn progress(&self) -> Progress {
        Progress::Idle
    }

    /// What arrives wakes those it is for.
    fn arm(&self) -> Progress {
        self.shared.channel.arm(Directions {
            read: true,
            write: true,
        });
        Progress::Idle
    }

    fn abandon(&self, op: OpId) {
        self.shared.abandon(op);
    }

    fn close(&self, why: &str) {
        if self.shared.lose(why) {
            self.send(Message::Closed {
                why: format!("closed by the peer: {why}"),
            });
        }
    }

    fn polling(&self) -> Polling {
        Polling::Never
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close("dropped");
    }
}
