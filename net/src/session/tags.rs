//! Tags of requests to a port that have parts: the number of the request, and of the part.

use wharf_core::router::Tag;

const PART_BITS: u32 = 16;

/// Returns the tag of one part of an operation.
pub(crate) fn tag(operation: usize, part: usize) -> Tag {
    debug_assert!(part < 1 << PART_BITS);
    ((operation as u64) << PART_BITS) | part as u64
}

/// Returns the operation and part of a tag.
pub(crate) fn split_tag(tag: Tag) -> (usize, usize) {
    ((tag >> PART_BITS) as usize, (tag & ((1 << PART_BITS) - 1)) as usize)
}
