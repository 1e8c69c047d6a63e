//! The Wharfinger wire.
