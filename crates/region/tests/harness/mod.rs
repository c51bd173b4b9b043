//! What the tests of this crate stand on: a small cluster without network (`world`), what a user can see of it
//! (`snapshot`), and power cuts at every fence (`power`).
#![allow(dead_code)] // each test binary uses its part

pub mod power;
pub mod snapshot;
pub mod world;
