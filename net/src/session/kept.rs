//! The replies that sessions keep.
//!
//! Nearly every request has a short reply that is kept until the client acknowledges it. Short replies are in blocks of one
//! size, which the sessions of an I/O thread use again, so that a request in a steady state takes nothing from the allocator.

use std::fmt;
use std::ops::Deref;

use crate::limits::REPLY_BLOCKS_FREE_MAX;

/// Bytes of a block. The grant of a placement that has no GPUs takes about 70.
pub(super) const BLOCK_BYTES: usize = 128;

type Block = Box<[u8; BLOCK_BYTES]>;

/// An encoded reply.
pub(super) enum KeptReply {
    /// The first bytes of a block.
    Short(Block, u8),
    Long(Box<[u8]>),
}

const _: () = assert!(BLOCK_BYTES <= u8::MAX as usize);

impl KeptReply {
    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Short(..) => BLOCK_BYTES,
            Self::Long(reply) => reply.len(),
        }
    }
}

/// Shows the reply, and nothing of one that the block had before.
impl fmt::Debug for KeptReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl Deref for KeptReply {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(block, length) => &block[..usize::from(*length)],
            Self::Long(reply) => reply,
        }
    }
}

/// Blocks for kept replies that are free, of the sessions of an I/O thread.
#[derive(Debug, Default)]
pub struct ReplyBlocks {
    free: Vec<Block>,
}

impl ReplyBlocks {
    /// Keeps a reply.
    #[inline]
    pub(super) fn keep(&mut self, reply: &[u8]) -> KeptReply {
        if reply.len() > BLOCK_BYTES {
            return KeptReply::Long(reply.into());
        }
        let mut block = self.free.pop().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
        block[..reply.len()].copy_from_slice(reply);
        KeptReply::Short(block, reply.len() as u8)
    }

    /// Takes back what a reply was kept in.
    #[inline]
    pub(super) fn take_back(&mut self, reply: KeptReply) {
        if let KeptReply::Short(block, _) = reply
            && self.free.len() < REPLY_BLOCKS_FREE_MAX
        {
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_replies_use_blocks_again_and_show_nothing_of_earlier_ones() {
        let mut blocks = ReplyBlocks::default();
        let full = blocks.keep(&[1; BLOCK_BYTES]);
        assert_eq!((&full[..], full.bytes()), (&[1; BLOCK_BYTES][..], BLOCK_BYTES));
        blocks.take_back(full);
        assert_eq!(blocks.free.len(), 1);
        let empty = blocks.keep(&[]);
        assert_eq!((&empty[..], blocks.free.len()), (&[][..], 0));
        let other = blocks.keep(b"other");
        assert_eq!((&other[..], other.bytes()), (&b"other"[..], BLOCK_BYTES));
        assert_eq!(format!("{other:?}"), format!("{:?}", b"other"));
    }

    #[test]
    fn long_replies_take_their_length_and_are_dropped() {
        let mut blocks = ReplyBlocks::default();
        let reply = [7; BLOCK_BYTES + 1];
        let long = blocks.keep(&reply);
        assert_eq!((&long[..], long.bytes()), (&reply[..], reply.len()));
        blocks.take_back(long);
        assert!(blocks.free.is_empty());
    }

    #[test]
    fn free_blocks_are_bounded() {
        let mut blocks = ReplyBlocks::default();
        let kept: Vec<_> = (0..REPLY_BLOCKS_FREE_MAX + 10).map(|_| blocks.keep(b"reply")).collect();
        kept.into_iter().for_each(|reply| blocks.take_back(reply));
        assert_eq!(blocks.free.len(), REPLY_BLOCKS_FREE_MAX);
    }
}
