//! Clusters in a program's own process (`cluster`), so that nodes cost no processes, and colocated and remote clients of one pool are
//! seen side by side; threads that keep to a core (`cores`, `on_thread`) and what has to be done in a further process (`part`).
//! `polvo-bench` measures them.
//!
//! `polvo-testbed` does with them what every test run needs: it repeats the hottest operations, whose instructions are counted
//! (`scripts/instructions`), and reaches the limits that are promised (`tests/e2e/limits`). It is kept small:
//! like the programs that are installed it is optimized as a whole, which takes minutes for a large one.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod cores;
pub mod hot_operations;
pub mod limits;
pub mod on_thread;
pub mod part;

/// Any failure of what is tried.
pub type Failure = Box<dyn std::error::Error>;
