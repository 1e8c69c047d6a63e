//! Bodies of any message, drawn from the choices of a fuzzer.
//!
//! The type of a body decides which numbers, texts and lists are drawn, because the body is read with [`Draw`] instead of
//! a decoder. So every kind is covered without a generator of its own. The name of a field makes its value plausible, so
//! that most bodies pass the first checks of the service.

use std::collections::VecDeque;

use serde::de::value::Error;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use wharf_core::time::Time;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession};

use crate::sim::choices::Choices;

/// One unit, in 1/10,000 of a unit.
const UNIT: u64 = 10_000;
/// The number of nodes that bodies name.
pub(crate) const NODES: u64 = 5;
/// The highest number of elements of most lists.
const ELEMENTS_MAX: u64 = 3;
/// Names and values that bodies use.
const TEXTS: [&str; 10] =
    ["", "a", "b", "zone", "rack", "team", "gpu-model", "example.com/x", "x*", "größer"];

/// The queues that a service with jobs begins with.
pub(crate) const QUEUES: [&str; 2] = ["n0", "n1"];

/// The priority class that a service with jobs begins with.
pub(crate) const CLASS: &str = "n0";

/// What the peers of a run know. Bodies name it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) now: Time,
    pub(crate) allocations: Vec<WireAllocation>,
    pub(crate) groups: Vec<WireGroup>,
    pub(crate) sessions: Vec<WireSession>,
    /// The next sequence of the peer that sends.
    pub(crate) next: u64,
    /// The service keeps jobs, and the numbers and names of their bodies are plausible. Inputs without it keep their meaning.
    pub(crate) has_jobs: bool,
}

/// Draws a body. Returns `None` if what was drawn is beyond a bound.
pub(crate) fn draw<T: DeserializeOwned>(choices: &mut Choices<'_>, known: &Known) -> Option<T> {
    let mut draw = Draw {
        choices,
        known,
        body: "",
        field: "",
        is_bundle: false,
        waits: false,
        is_in_queue: false,
        given: VecDeque::new(),
    };
    T::deserialize(&mut draw).ok()
}

/// Draws what a body asks for.
struct Draw<'c, 'a> {
    choices: &'c mut Choices<'a>,
    known: &'c Known,
    /// The body and the field that is drawn.
    body: &'static str,
    field: &'static str,
    /// The body is part of a bundle, which does not wait by itself.
    is_bundle: bool,
    /// The last mode that was drawn says that the request waits, or a bundle is named by its allocation.
    waits: bool,
    /// The placement names a queue.
    is_in_queue: bool,
    /// The next numbers, which belong together.
    given: VecDeque<u64>,
}

impl Draw<'_, '_> {
    fn any_number(&mut self) -> u64 {
        match self.choices.below(16) {
            0..8 => self.choices.below(4),
            8..12 => self.choices.below(32),
            12 | 13 => self.choices.below(1 << 16),
            14 => *self.choices.pick(&[u64::MAX, i64::MAX as u64, i64::MIN as u64, 1 << 53, u32::MAX.into()]),
            _ => (0..8).fold(0, |number, _| number << 8 | self.choices.below(256)),
        }
    }

    /// Draws a number for the field.
    fn number(&mut self) -> u64 {
        if let Some(given) = self.given.pop_front() {
            return given;
        }
        if self.choices.one_in(16) {
            return self.any_number();
        }
        match self.field {
            "job" if self.known.has_jobs => 1 + self.choices.below(3),
            "min_member" | "role" | "exit_code" if self.known.has_jobs => self.rarely(3),
            "tenant" if self.known.has_jobs && self.body == "QueueBody" => self.choices.below(3),
            "cpu" | "memory" | "amount" | "total" => self.choices.below(10) * UNIT / 2,
            "gpu" => *self.choices.pick(&[0, 0, 0, UNIT / 4, UNIT / 2, UNIT, 2 * UNIT]),
            "gpus" => self.choices.below(3),
            "policy" => self.choices.below(9),
            "node" if self.body == "PlaceRequest" => self.rarely(NODES + 2),
            "node" | "candidates" | "preferred_nodes" => self.choices.below(NODES + 2),
            "lease" if self.is_in_queue => 0,
            "mode" if self.body == "JobTopologyBody" => 1 + self.choices.below(2),
            "mode" => {
                // Most placements in queues do not wait, so that caps refuse some at once.
                let one_in = if self.is_in_queue { 4 } else { 2 };
                self.waits = !self.is_bundle && self.choices.one_in(one_in);
                u64::from(self.waits)
            }
            "deadline" if !self.waits => 0,
            "deadline" => self.known.now.0 + self.choices.below(30_000),
            "lease" if self.is_bundle => 0,
            "lease" | "lasts" | "grace" => self.rarely(20_000),
            "priority" if self.is_bundle => 0,
            "priority" | "owner" | "attribute_order" | "max_skew" => self.rarely(3),
            "expected_version" if self.body == "PlaceRequest" => 0,
            "expected_version" => self.rarely(3),
            "sequence" | "sequences" => self.choices.below(self.known.next + 2),
            "count" if self.body == "PlaceRequest" => 1,
            "max_retry" | "min_success" | "run_time" if self.known.has_jobs => 1 + self.choices.below(4),
            "count" | "limit" => 1 + self.choices.below(3),
            "conflict_detection" | "version_min" | "version_max" => self.choices.below(2),
            "operation" => 1 + self.choices.below(3),
            "operator" => 1 + self.choices.below(8),
            "kinds" => 1 + self.choices.below(7),
            "strategy" | "effect" | "rule" => self.choices.below(4),
            "explain" | "avoid_gpu" | "wait_ms" | "bundle" | "min_members" => self.choices.below(2),
            "weight" => self.choices.below(100),
            _ => self.any_number(),
        }
    }

    /// Draws a number below `bound` in one of eight cases, and 0 otherwise.
    fn rarely(&mut self, bound: u64) -> u64 {
        if self.choices.one_in(8) { self.choices.below(bound) } else { 0 }
    }

    fn text(&mut self) -> String {
        if self.choices.one_in(16) {
            let length = self.choices.below(20);
            let bytes: Vec<u8> = (0..length).map(|_| self.choices.below(256) as u8).collect();
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        match self.field {
            "name" | "names" | "node" | "node_name" => format!("n{}", self.choices.below(NODES)),
            "key" => (*self.choices.pick(&["zone", "rack", "team", "gpu-model"])).to_owned(),
            // One of the few queues that a run makes, so that jobs find theirs.
            "queue" if self.known.has_jobs && self.body == "JobBody" => self.queue(),
            // A placement in a queue has no lease.
            "queue" if self.may_name_queue() && self.choices.one_in(2) => {
                self.is_in_queue = true;
                self.queue()
            }
            // Most name none, so that most jobs are right.
            "priority_class" if !self.choices.one_in(16) => String::new(),
            "priority_class" => (*self.choices.pick(&[CLASS, CLASS, "n1"])).to_owned(),
            "tier" if self.known.has_jobs => (*self.choices.pick(&["", "rack", "zone"])).to_owned(),
            "parent" if self.known.has_jobs && !self.choices.one_in(8) => String::new(),
            "queue" | "identity" | "external_id" | "resource" if !self.choices.one_in(16) => String::new(),
            "value" | "values" => (*self.choices.pick(&["a", "b", "1", "2", ""])).to_owned(),
            _ => (*self.choices.pick(&TEXTS)).to_owned(),
        }
    }

    /// Returns the name of one of the queues that a service with jobs begins with.
    fn queue(&mut self) -> String {
        (*self.choices.pick(&QUEUES)).to_owned()
    }

    /// Returns whether the body is a placement that may name a queue.
    fn may_name_queue(&self) -> bool {
        self.known.has_jobs && self.body == "PlaceRequest" && !self.is_bundle
    }

    /// Draws numbers that belong together: an id that the peer knows.
    fn id(&mut self, body: &str) -> Option<Vec<u64>> {
        let known = self.known;
        if self.choices.one_in(8) {
            return None;
        }
        Some(match body {
            "WireAllocation" if !known.allocations.is_empty() => {
                let id = self.choices.pick(&known.allocations);
                vec![id.incarnation.into(), id.partition.into(), id.sequence, id.tenant.into()]
            }
            "WireGroup" if !known.groups.is_empty() => {
                let id = self.choices.pick(&known.groups);
                vec![id.incarnation.into(), id.number, id.tenant.into()]
            }
            "WireSession" if !known.sessions.is_empty() => {
                let id = self.choices.pick(&known.sessions);
                vec![id.incarnation.into(), id.number]
            }
            _ => return None,
        })
    }
}

/// The elements of a list, or the fields of a body.
struct Elements<'d, 'c, 'a> {
    draw: &'d mut Draw<'c, 'a>,
    left: usize,
    /// The names of the fields. Empty for a list, whose elements have the field of the list.
    fields: &'static [&'static str],
}

impl<'de> SeqAccess<'de> for Elements<'_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        if let Some(field) = self.fields.len().checked_sub(self.left).map(|at| self.fields[at]) {
            self.draw.field = field;
        }
        self.left -= 1;
        seed.deserialize(&mut *self.draw).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty,)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            // A number that is too large for its type is cut, so that small types get all their values.
            visitor.$visit(self.number() as $number)
        })*
    };
}

macro_rules! not_in_bodies {
    ($($method:ident($($argument:ty),*),)*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $argument,)* _visitor: V) -> Result<V::Value, Error> {
            unreachable!("bodies have plain fields only")
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Draw<'_, '_> {
    type Error = Error;

    numbers! {
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_u128 visit_u128 u128,
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_i128 visit_i128 i128,
    }

    not_in_bodies! {
        deserialize_any(),
        deserialize_f32(),
        deserialize_f64(),
        deserialize_char(),
        deserialize_unit(),
        deserialize_unit_struct(&'static str),
        deserialize_map(),
        deserialize_enum(&'static str, &'static [&'static str]),
        deserialize_identifier(),
        deserialize_ignored_any(),
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // Neither tasks nor most placements in queues have leases.
        let is_unleased = self.known.has_jobs && self.field == "session_lease";
        visitor.visit_bool(self.choices.one_in(if is_unleased { 16 } else { 4 }))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(&self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(self.text().as_bytes())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is_some = match self.body {
            "PlaceRequest" => self.choices.one_in(16),
            "JobBody" | "TaskGroupBody" if self.known.has_jobs => self.choices.one_in(8),
            // A bundle is named by its allocation, or by its group and index.
            "PlaceIntoRequest" if self.field == "allocation" => {
                self.waits = self.choices.one_in(2);
                self.waits
            }
            "PlaceIntoRequest" => !self.waits,
            _ => self.choices.one_in(3),
        };
        if is_some { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = match self.field {
            // Most requests are about some nodes, operations or bundles.
            "nodes" | "names" | "requests" | "bundles" | "operations" | "allocations" | "resources" => {
                1 + self.choices.below(ELEMENTS_MAX)
            }
            "tasks" | "roles" if self.known.has_jobs => 1 + self.choices.below(ELEMENTS_MAX),
            _ if self.choices.one_in(12) => self.choices.below(ELEMENTS_MAX),
            _ => 0,
        };
        visitor.visit_seq(Elements { draw: self, left: left as usize, fields: &[] })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { draw: self, left, fields: &[] })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(left, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let around = (self.body, self.field, self.is_bundle);
        let id = self.id(name);
        self.given.extend(id.into_iter().flatten());
        self.body = name;
        self.is_in_queue &= name != "PlaceRequest";
        self.is_bundle |= name == "BundleTemplate" || (self.known.has_jobs && name == "TaskGroupBody");
        let body = visitor.visit_seq(Elements { draw: self, left: fields.len(), fields });
        (self.body, self.field, self.is_bundle) = around;
        body
    }
}
