//! Empties a simulated cache, so that its misses are the distinct cache lines that a part of the program touches.
//!
//! `bench-harness/callgrind/placement.py` runs the program with a cache of [`LINES`] lines in one set. Such a cache keeps
//! what was touched last, so reading as many other lines empties it. What is touched next misses once per line.

use std::hint::black_box;

/// The lines of the simulated cache: far more than a request touches.
const LINES: usize = 1024;

/// The bytes of the stack that a request may use.
const STACK_BYTES: usize = 16 * 1024;

/// The bytes of a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Memory that nothing else uses, as large as the simulated cache.
pub(super) struct ColdCache(Vec<Line>);

impl ColdCache {
    pub(super) fn new() -> Self {
        Self(vec![Line([1; 64]); LINES])
    }

    /// Reads all lines, so that the cache has no others.
    pub(super) fn empty(&self) {
        let mut sum = 0u8;
        for line in &self.0 {
            sum = sum.wrapping_add(black_box(line).0[0]);
        }
        black_box(sum);
    }
}

/// Writes the stack below the caller's frame, so that its lines are in the cache. Those are in the cache of a real
/// processor too, and depend on the compiler alone.
#[inline(never)]
pub(super) fn touch_stack() {
    let mut area = [0u8; STACK_BYTES];
    black_box(&mut area);
}
