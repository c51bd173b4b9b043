//! One region as a log-structured file-tree shard: space, inodes, logs, directories, transactions, recovery, garbage
//! collection, check; and the pool that regions share.
//!
//! Synchronous and deterministic: no clock, no thread, no randomness of its own. Time comes in as `now_ns`, sessions and
//! ticks from the node. A [`Region`] is guarded by one short lock of its user. What a change returns from is durable.
//!
//! On the media every inode has a log, whose tail is the commit point; what changes several inodes is one redo record.
//! In DRAM, all of it rebuilt at recovery: free space, and a cache of inodes with their mappings and names.
#![forbid(unsafe_code)]

mod bitmap;
mod cache;
mod capture;
mod change;
mod cleaning;
mod data_checksums;
mod directory;
mod dram_inode;
mod error;
mod extents;
mod file_index;
mod file_view;
mod finding;
mod flipped_bit;
mod gc;
mod hash;
mod lane;
mod layout;
mod load;
mod log;
mod offline;
mod origins;
#[doc(hidden)]
pub mod planted;
mod pool;
mod reconcile;
mod recovery;
mod region;
mod region_check;
mod region_read;
mod replica;
mod session_resources;
mod session_table;
mod shrink;
mod snapshot;
mod snapshots;
mod space;
mod stage;
mod staged_append;
mod staged_change;
mod staging;
mod store;
mod survey;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tokens;
mod transaction;
mod txn_locks;
mod writers;
mod writes;

pub use change::{NewData, Stored};
pub use error::RegionError;
pub use file_view::{Extent, FileView, Part, ReadPlan, Unchanged};
pub use finding::Finding;
pub use lane::{Lane, ToCopy};
pub use offline::{Checked, NOTHING_LOST, OfflinePool, Progress, Repaired, check, repair};
pub use origins::Done;
#[cfg(feature = "two-phase")]
pub use pool::PreparedPart;
#[cfg(feature = "planted")]
pub use pool::limit_redo_log;
pub use pool::{CollectedPart, FormatParams, PoolIdentity, PoolSpace, PoolUsage, RedoId, RemotePart, Undispatched};
pub use reconcile::{PageImage, Reconciled};
pub use recovery::Recovery;
pub use region::Region;
pub use region_check::CheckReport;
pub use replica::Replica;
pub use shrink::Demand;
pub use snapshot::{Piece, Snapshot};
pub use tokens::TokenId;
pub use transaction::Decided;
