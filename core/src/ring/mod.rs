//! Bounded lock-free rings, one per port and shard and direction, and the doorbells that wake
//! whoever sleeps at their end. This is the only module of the crate with `unsafe` code.
//!
//! Both are model-checked by loom: `core/tests/loom_ring.rs`.
#![allow(unsafe_code, reason = "a ring hands values between threads without a lock; model-checked by loom")]

mod doorbell;
pub use doorbell::Doorbell;
mod spsc;
pub use spsc::{Consumer, Producer, channel};
