//! Peers on one host (being built).
