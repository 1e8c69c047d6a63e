//! Measures Wharfinger.
