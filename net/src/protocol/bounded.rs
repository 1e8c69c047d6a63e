//! Bounds on the contents of a body, enforced while it is read. A list that claims to be longer is refused
//! before anything is allocated for it.
//!
//! The body format has no field names, so an error carries only text. Each bounded field therefore has its
//! own type in [`field`] that adds its name to the text. [`split_error`] separates the name from the text
//! again.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use wharf_core::limits::NAME_BYTES_MAX;

/// The name of a bounded field.
pub(super) trait Field {
    const NAME: &'static str;
}

macro_rules! fields {
    ($($field:ident = $name:literal;)*) => {
        /// The bounded fields, by their names in the structs.
        pub(super) mod field {
            $(
                pub(in crate::protocol) struct $field;

                impl super::Field for $field {
                    const NAME: &'static str = $name;
                }
            )*
        }
    };
}

fields! {
    Allocations = "allocations";
    AllocationsEnded = "allocations_ended";
    Boot = "boot";
    Bundles = "bundles";
    Candidates = "candidates";
    Checks = "checks";
    Claims = "claims";
    Client = "client";
    Conflicts = "conflicts";
    Custom = "custom";
    ExternalId = "external_id";
    Fallbacks = "fallbacks";
    Fault = "fault";
    Field = "field";
    Gpus = "gpus";
    GpusAvailable = "gpus_available";
    Groups = "groups";
    Holds = "holds";
    HoldsEnded = "holds_ended";
    Identity = "identity";
    Instances = "instances";
    Key = "key";
    Labels = "labels";
    Message = "message";
    Model = "model";
    Name = "name";
    Names = "names";
    NodeName = "node_name";
    Nodes = "nodes";
    NodesGone = "nodes_gone";
    Operations = "operations";
    Preferred = "preferred";
    PreferredNodes = "preferred_nodes";
    PreferredSelectors = "preferred_selectors";
    Queue = "queue";
    Reason = "reason";
    Releasing = "releasing";
    Replies = "replies";
    Requests = "requests";
    Resource = "resource";
    Resources = "resources";
    Sequences = "sequences";
    Selectors = "selectors";
    Shards = "shards";
    Software = "software";
    Taints = "taints";
    Tenant = "tenant";
    Tolerations = "tolerations";
    Unhealthy = "unhealthy";
    Units = "units";
    Uuid = "uuid";
    Value = "value";
    Values = "values";
    Versions = "from";
}

/// Separates a field's name from the error message. No name contains it.
const FIELD_END: char = '\u{1f}';

fn error<F: Field, E: Error>(message: fmt::Arguments<'_>) -> E {
    E::custom(format_args!("{}{FIELD_END}{message}", F::NAME))
}

/// Splits an error text into the field's name, or an empty text, and the message.
pub(crate) fn split_error(text: &str) -> (&str, &str) {
    text.split_once(FIELD_END).unwrap_or(("", text))
}

struct Bounded<T, F>(usize, PhantomData<(T, F)>);

impl<'de, T: Deserialize<'de>, F: Field> Visitor<'de> for Bounded<T, F> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let claimed = seq.size_hint().unwrap_or(0);
        let too_long = |count: usize| {
            error::<F, A::Error>(format_args!("a list of {count} elements: send at most {}", self.0))
        };
        if claimed > self.0 {
            return Err(too_long(claimed));
        }
        let mut list = Vec::with_capacity(claimed);
        while let Some(element) = seq.next_element()? {
            if list.len() == self.0 {
                return Err(too_long(list.len() + 1));
            }
            list.push(element);
        }
        Ok(list)
    }
}

/// Reads a list of at most `MAX` elements.
pub(super) fn list<'de, D, T, F, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
    F: Field,
{
    deserializer.deserialize_seq(Bounded(MAX, PhantomData::<(T, F)>))
}

struct Text<F>(usize, PhantomData<F>);

impl<F: Field> Visitor<'_> for Text<F> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {} bytes", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() <= self.0 {
            return Ok(text.to_owned());
        }
        // If many elements have this field, the beginning of the text shows which one is meant.
        let beginning: String = text.chars().take(24).collect();
        let bytes = text.len();
        Err(error::<F, E>(format_args!("the text {beginning:?}… has {bytes} bytes: send at most {}", self.0)))
    }
}

/// Reads a name of at most [`NAME_BYTES_MAX`] bytes.
pub(super) fn name<'de, D: Deserializer<'de>, F: Field>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_str(Text(NAME_BYTES_MAX, PhantomData::<F>))
}

/// Reads a message for people, of at most 4 KiB.
pub(super) fn prose<'de, D: Deserializer<'de>, F: Field>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_str(Text(4096, PhantomData::<F>))
}
