//! The books of one node, by part. Shards change them and views show them.

mod custom;
mod exact;
mod withheld;

pub(crate) use custom::{CustomBook, book_or_new, respecify, take_over, units_of};
pub(crate) use exact::{ExactAmounts, RareShortfalls, Shortfalls};
pub(crate) use withheld::{
    CLAIMED, Cause, Claim, Entry, Kinds, PROMISED, RESERVED, Reservation, UNHEALTHY, WITHHELD,
};
