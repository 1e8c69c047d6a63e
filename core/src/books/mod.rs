//! The books of one node, by part. Shards change them and views show them.

mod custom;
mod health;
mod withheld;

pub(crate) use custom::{CustomBook, book_or_new, respecify, take_over, units_of};
pub(crate) use health::UnhealthyBook;
pub(crate) use withheld::{Reservation, Withheld, WithheldCustom};
