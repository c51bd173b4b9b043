//! What the tests of this crate stand on: a small cluster without network (`world`), what a user can see of it
//! (`snapshot`), power cuts at every fence (`power`), copies that follow by records (`replicas`), and by lanes in pools that lose their power
//! (`mirrors`), damage (`damage`), and where
//! everything lies on the media (`structures`).
#![allow(dead_code)] // each test binary uses its part

pub mod damage;
pub mod mirrors;
pub mod power;
pub mod replicas;
pub mod snapshot;
pub mod structures;
pub mod world;
