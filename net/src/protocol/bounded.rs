//! Bounds on what a body may hold, enforced while it is read: a list that claims to be longer
//! is refused before anything is allocated for it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use wharf_core::limits::NAME_BYTES_MAX;

struct Bounded<T>(usize, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let claimed = seq.size_hint().unwrap_or(0);
        let too_long =
            |count: usize| A::Error::custom(format!("a list of {count} elements: send at most {}", self.0));
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

/// A list of at most `MAX` elements.
pub(super) fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Bounded(MAX, PhantomData))
}

struct Text(usize);

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {} bytes", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() <= self.0 {
            return Ok(text.to_owned());
        }
        // The format does not know the names of fields: the text's beginning says which it is.
        let beginning: String = text.chars().take(24).collect();
        Err(E::custom(format!("the text {beginning:?}… has {} bytes: send at most {}", text.len(), self.0)))
    }
}

/// A name: at most [`NAME_BYTES_MAX`] bytes.
pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_str(Text(NAME_BYTES_MAX))
}

/// A message for people: at most 4 KiB.
pub(super) fn prose<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_str(Text(4096))
}
