//! The values of the journal: what one append stores.
//!
//! A value is a header, the encoded units, and the hash of both. The header names the append's epoch and number, and for
//! each stream the position before it and the number of effects. A reader finds any changed byte by the hash, and any
//! missing or doubled value by the numbers.

use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use wharf_core::hash::stable_hash;
use wharf_core::journal::{Stream, Unit};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_net::codec::{decode_body, decode_stored, encode_body};

use super::mirror::Stored;
use super::unit_row::UnitRow;

/// The version of the format.
const FORMAT: u8 = 2;

/// The number of bytes of units after which a value ends. With its header it stays below 1 MiB, unless one unit alone is
/// longer.
pub(super) const UNITS_BYTES: usize = 960 << 10;

const HASH_BYTES: usize = 8;

/// What a value says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    format: u8,
    /// The epoch of the writer.
    pub(super) epoch: u64,
    /// The number of the append.
    pub(super) number: u64,
    /// The streams, ascending: the position before this append, and the number of effects.
    pub(super) streams: Vec<(u16, u64, u32)>,
    /// The number of units.
    pub(super) units: u32,
    /// What came before it.
    pub(super) before: Before,
    /// The number of its events.
    pub(super) events: u32,
}

/// What the values before a value have. These are totals over all starts, so a reader that begins anywhere knows its
/// position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// The position of their last event.
    pub events: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

/// What a value has, and what came before it.
pub(super) struct Content {
    pub(super) units: u32,
    pub(super) events: u32,
    pub(super) before: Before,
}

impl Header {
    pub(super) fn new(epoch: u64, number: u64, streams: &[(Stream, u64, u32)], content: &Content) -> Self {
        let streams = streams.iter().map(|&(stream, before, count)| (stream.0, before, count)).collect();
        let &Content { units, events, before } = content;
        Self { format: FORMAT, epoch, number, streams, units, before, events }
    }
}

/// Appends a unit to the units of a value.
pub(super) fn encode_unit(unit: &Unit, kinds: &ResourceRegistry, out: &mut Vec<u8>) {
    encode_body(&UnitRow::of(unit, kinds), out);
}

/// Puts a value together.
pub(super) fn encode(header: &Header, units: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(64 + units.len());
    encode_body(header, &mut value);
    value.extend_from_slice(units);
    value.extend_from_slice(&stable_hash(&value).to_le_bytes());
    value
}

/// Looks for a value at the front of `bytes`, which may be anything. Returns its header and its length, if it is whole.
pub(super) fn find(bytes: &[u8]) -> Option<(Header, usize)> {
    if bytes.first() != Some(&FORMAT) {
        return None;
    }
    // What claims a length is bounded here, because it may be no value.
    let (header, mut end) = decode_body::<Header>(bytes).ok()?;
    let ascend = header.streams.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if header.units == 0 || !ascend {
        return None;
    }
    for _ in 0..header.units {
        end += decode_body::<UnitRow>(&bytes[end..]).ok()?.1;
    }
    let hash = bytes.get(end..end + HASH_BYTES)?;
    (stable_hash(&bytes[..end]).to_le_bytes() == hash).then_some((header, end + HASH_BYTES))
}

/// A value whose hash is right.
#[derive(Debug)]
pub(super) struct Value<'a> {
    pub(super) header: Header,
    units: &'a [u8],
    /// The length of the whole value.
    bytes: u64,
}

impl<'a> Value<'a> {
    /// Checks a value.
    ///
    /// # Errors
    /// When it is not as it was written.
    pub(super) fn read(bytes: &'a [u8]) -> anyhow::Result<Self> {
        let whole = bytes.len().checked_sub(HASH_BYTES).map(|at| bytes.split_at(at));
        let (content, hash) = whole.context("it is shorter than its hash")?;
        let hash = u64::from_le_bytes(hash.try_into().expect("split there"));
        let is_whole = stable_hash(content) == hash || is_planted(PlantedBug::ValueHashUnchecked);
        ensure!(is_whole, "its hash is not that of its bytes");
        let (header, read) = decode_stored::<Header>(content).map_err(|error| anyhow!(error))?;
        if header.format != FORMAT {
            bail!("it has format {}, and this version reads format {FORMAT}", header.format);
        }
        Ok(Self { header, units: &content[read..], bytes: bytes.len() as u64 })
    }

    /// Returns what the values up to and with this one have.
    pub(super) fn after(&self) -> Before {
        let before = self.header.before;
        Before { events: before.events + u64::from(self.header.events), bytes: before.bytes + self.bytes }
    }

    /// Returns the units. `catalog` has the resource kinds so far.
    ///
    /// # Errors
    /// When a unit has a form that this version does not write.
    pub(super) fn units(self, catalog: &mut Catalog) -> anyhow::Result<Vec<Unit>> {
        let mut left = self.units;
        let mut units = Vec::new();
        while !left.is_empty() {
            let (row, read) = decode_stored::<UnitRow>(left).map_err(|error| anyhow!(error))?;
            left = &left[read..];
            units.push(row.read(catalog)?);
        }
        let found = units.len();
        ensure!(found == self.header.units as usize, "it has {found} units, not {}", self.header.units);
        let events: usize = units.iter().map(Unit::event_count).sum();
        ensure!(events == self.header.events as usize, "it has {events} events, not {}", self.header.events);
        Ok(units)
    }
}
