//! Conversion between the records of the engine and the rows that store them.
//!
//! A row lists the fields of its record in the order in which they are stored, each with its type in the format. The macro
//! `rows` makes both directions of the conversion from this list. A field that only one of the two has does not compile,
//! so a change to the engine cannot silently change the format on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use wharf_core::ids::{
    AllocationId, GroupId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, ResourceId, SessionId,
    ShardId, StatementId, TenantId,
};
use wharf_core::jobs::JobId;
use wharf_core::registrar::Catalog;
use wharf_core::resource::{Amount, ResourceRegistry};
use wharf_core::rng::Rng;
use wharf_core::time::Time;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession, WireStatement};

/// A type of the format that stores a `T`.
pub(super) trait Stored<T>: Sized {
    /// Returns what stores `record`. `kinds` are all resource kinds that it uses.
    fn of(record: &T, kinds: &ResourceRegistry) -> Self;

    /// Returns what was stored. `catalog` has the resource kinds so far, and learns those of nodes.
    ///
    /// # Errors
    /// When it has a form that this version does not write.
    fn read(self, catalog: &mut Catalog) -> anyhow::Result<T>;
}

/// Defines rows with the fields or variants of records. The parts of a variant are named, although they are stored by
/// their order.
macro_rules! rows {
    () => {};
    (
        $(#[$meta:meta])*
        struct $row:ident of $record:ident { $($(#[$of_field:meta])* $field:ident: $type:ty),* $(,)? }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Serialize, Deserialize)]
        pub(super) struct $row {
            $($(#[$of_field])* $field: $type,)*
        }

        impl Stored<$record> for $row {
            fn of(record: &$record, kinds: &ResourceRegistry) -> Self {
                let $record { $($field,)* } = record;
                Self { $($field: Stored::of($field, kinds),)* }
            }

            fn read(self, catalog: &mut Catalog) -> anyhow::Result<$record> {
                Ok($record { $($field: Stored::read(self.$field, catalog)?,)* })
            }
        }

        rows! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        enum $row:ident of $record:ident {
            $(
                $(#[$of_variant:meta])*
                $variant:ident $(($($part:ident: $of_part:ty),*))? $({ $($field:ident: $type:ty),* $(,)? })?,
            )*
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[derive(Serialize, Deserialize)]
        pub(super) enum $row {
            $($(#[$of_variant])* $variant $(($($of_part),*))? $({ $($field: $type,)* })?,)*
        }

        impl Stored<$record> for $row {
            fn of(record: &$record, kinds: &ResourceRegistry) -> Self {
                match record {
                    $($record::$variant $(($($part),*))? $({ $($field),* })? => {
                        Self::$variant
                            $(($(Stored::of($part, kinds)),*))?
                            $({ $($field: Stored::of($field, kinds)),* })?
                    })*
                }
            }

            fn read(self, catalog: &mut Catalog) -> anyhow::Result<$record> {
                Ok(match self {
                    $(Self::$variant $(($($part),*))? $({ $($field),* })? => {
                        $record::$variant
                            $(($(Stored::read($part, catalog)?),*))?
                            $({ $($field: Stored::read($field, catalog)?),* })?
                    })*
                })
            }
        }

        rows! { $($rest)* }
    };
}
pub(super) use rows;

/// Stores the variants of an enum as numbers.
macro_rules! numbers {
    ($record:ident, $what:literal: $($number:literal $variant:ident),*) => {
        impl Stored<$record> for u8 {
            fn of(record: &$record, _: &ResourceRegistry) -> Self {
                match record {
                    $($record::$variant => $number,)*
                }
            }

            fn read(self, _: &mut Catalog) -> anyhow::Result<$record> {
                Ok(match self {
                    $($number => $record::$variant,)*
                    _ => anyhow::bail!("{self} is no {}", $what),
                })
            }
        }
    };
}
pub(super) use numbers;

/// Stores a type by a pair of conversions, of which the second one may fail.
macro_rules! stored_as {
    ($($stored:ty, $record:ty: $of:expr, $read:expr;)*) => {$(
        impl Stored<$record> for $stored {
            fn of(record: &$record, _: &ResourceRegistry) -> Self {
                let of: fn(&$record) -> Self = $of;
                of(record)
            }

            fn read(self, _: &mut Catalog) -> anyhow::Result<$record> {
                let read: fn(Self) -> anyhow::Result<$record> = $read;
                read(self)
            }
        }
    )*};
}
pub(super) use stored_as;

macro_rules! stored_as_is {
    ($($type:ty)*) => { stored_as! { $($type, $type: Clone::clone, Ok;)* } };
}
stored_as_is! { u8 u16 u32 u64 i64 i128 bool String [u8; 16] }

macro_rules! newtypes {
    ($($stored:ty: $($record:ident)*;)*) => {
        stored_as! { $($($stored, $record: |record| record.0, |number| Ok($record(number));)*)* }
    };
}
newtypes! {
    u16: PartitionId ShardId TenantId ResourceId;
    u32: Incarnation;
    u64: NodeId Ordinal JobId Time;
}

stored_as! {
    WireAllocation, AllocationId: |&id| id.into(), |id| Ok(id.into());
    WireGroup, GroupId: |&id| id.into(), |id| Ok(id.into());
    WireSession, SessionId: |&id| id.into(), |id| Ok(id.into());
    WireStatement, StatementId: |&id| id.into(), |id| Ok(id.into());
    i64, Amount: |amount| amount.units(), |units| Ok(Amount::try_from_units(units)?);
    u64, OwnerId: |owner| owner.number(), |number| OwnerId::new(number).context("it has no owner");
    u64, Rng: Rng::state, |state| Ok(Rng::new(state));
    // 0 is no time.
    u64, Option<Time>: |time| time.map_or(0, |time| time.0), |nanos| Ok((nanos > 0).then_some(Time(nanos)));
    String, Arc<str>: |text| text.to_string(), |text| Ok(text.into());
    Vec<u8>, Arc<[u8]>: |bytes| bytes.to_vec(), |bytes| Ok(bytes.into());
}

impl<T, R: Stored<T>> Stored<Option<T>> for Option<R> {
    fn of(record: &Option<T>, kinds: &ResourceRegistry) -> Self {
        record.as_ref().map(|record| R::of(record, kinds))
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Option<T>> {
        self.map(|row| row.read(catalog)).transpose()
    }
}

impl<T, R: Stored<T>> Stored<Box<T>> for Box<R> {
    fn of(record: &Box<T>, kinds: &ResourceRegistry) -> Self {
        Self::new(R::of(record, kinds))
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Box<T>> {
        Ok(Box::new((*self).read(catalog)?))
    }
}

impl<T, R: Stored<T>> Stored<Vec<T>> for Vec<R> {
    fn of(records: &Vec<T>, kinds: &ResourceRegistry) -> Self {
        records.iter().map(|record| R::of(record, kinds)).collect()
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Vec<T>> {
        self.into_iter().map(|row| row.read(catalog)).collect()
    }
}

impl<K: Ord, V, A: Stored<K>, B: Stored<V>> Stored<BTreeMap<K, V>> for Vec<(A, B)> {
    fn of(records: &BTreeMap<K, V>, kinds: &ResourceRegistry) -> Self {
        records.iter().map(|(key, value)| (A::of(key, kinds), B::of(value, kinds))).collect()
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<BTreeMap<K, V>> {
        self.into_iter().map(|row| Stored::<(K, V)>::read(row, catalog)).collect()
    }
}

impl<T, U, A: Stored<T>, B: Stored<U>> Stored<(T, U)> for (A, B) {
    fn of((first, second): &(T, U), kinds: &ResourceRegistry) -> Self {
        (A::of(first, kinds), B::of(second, kinds))
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<(T, U)> {
        Ok((self.0.read(catalog)?, self.1.read(catalog)?))
    }
}
