//! The Wharfinger daemon.
