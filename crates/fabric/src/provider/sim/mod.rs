//! Simulated network (being built).
