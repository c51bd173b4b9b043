//! The fabric as its users see it, over every provider: one program, since each would have all providers in it.

mod support;

mod connecting;
mod polling;
mod relays;
mod restarted;
mod simulation;
mod threads;
mod verbs;
