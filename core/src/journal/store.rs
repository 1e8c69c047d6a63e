//! The storage of a journal, as the engine sees it.

/// A stream of the journal: a partition, or the global records.
///
/// Positions count the effects of a stream from 1. An append names each stream that it extends, with the position
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u16);

impl Stream {
    /// The stream of the registrar and of the groups.
    pub const GLOBAL: Self = Self(u16::MAX);
}

/// One append: a value that becomes durable as a whole, over all of its streams.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The epoch of the writer. A store refuses an epoch that is lower than the highest it has seen.
    pub epoch: u64,
    /// The number of this append: one more than that of the append before it.
    pub number: u64,
    /// The streams that it extends, ascending: the expected position of each, and the number of effects.
    pub streams: &'a [(Stream, u64, u32)],
    /// The encoded units.
    pub value: &'a [u8],
}

/// An append that cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no room. Nothing was written, and the append may be tried again.
    #[error("no room for the journal: {0}")]
    Full(String),
    /// It is unknown what is on disk. The process must end.
    #[error("the journal cannot be written: {0}")]
    Failed(String),
    /// Another writer has taken over.
    #[error("the journal belongs to a writer with epoch {epoch}")]
    Fenced {
        /// The epoch of the other writer.
        epoch: u64,
    },
}

/// The appends that a storage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of the first one. One more than `last` if there is none.
    pub first: u64,
    /// The number of the last one. 0 if there never was one.
    pub last: u64,
}

impl Bounds {
    /// Returns how many there are.
    #[must_use]
    pub fn count(self) -> u64 {
        self.last + 1 - self.first
    }
}

/// The storage of a journal. Embedded storage completes an append at once; a replicated one may take
/// milliseconds and have several under way.
pub trait JournalStore: Send {
    /// Begins an append. Appends complete in the order in which they were begun.
    ///
    /// # Errors
    /// When the append is refused. Nothing of it is stored then, unless the error is [`StoreError::Failed`].
    fn append(&mut self, append: &Append<'_>) -> Result<(), StoreError>;

    /// Returns the number of the last append that is durable, and waits for it if the storage does so cheaply.
    ///
    /// # Errors
    /// When an append that was begun has failed.
    fn durable(&mut self) -> Result<u64, StoreError>;

    /// Gives the values of the appends from `from` on to `each`, in order, until it returns false.
    ///
    /// # Errors
    /// When the storage cannot be read.
    fn read(&mut self, from: u64, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), StoreError>;

    /// Returns which appends are kept.
    ///
    /// # Errors
    /// When the storage cannot be read.
    fn bounds(&mut self) -> Result<Bounds, StoreError>;

    /// Drops appends before `number`, which a checkpoint covers.
    ///
    /// # Errors
    /// When the storage fails.
    fn trim(&mut self, number: u64) -> Result<(), StoreError>;
}
