//! The form of bodies: plain structs, whose texts and lists have bounds that are enforced while they are read.
//! A list that claims to be longer is refused before anything is allocated for it.
//!
//! The body format has no field names, so an error carries only text. The name of a bounded field is therefore
//! added to the text, and [`split_error`] separates it again.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use wharf_core::limits::NAME_BYTES_MAX;

/// The bound of a name, in bytes.
pub(super) const NAME: usize = NAME_BYTES_MAX;
/// The bound of a message for people, in bytes.
pub(super) const PROSE: usize = 4096;

/// Defines bodies. A text or list has its bound in brackets after its type. A field may have a default.
macro_rules! bodies {
    ($(
        $(#[$attribute:meta])*
        pub struct $body:ident {
            $($(#[$doc:meta])* pub $field:ident: $type:ty $([$bound:expr])? $(= $default:expr)?,)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct $body {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $body {
            fn default() -> Self {
                Self { $($field: bodies!(@default $($default)?),)* }
            }
        }

        impl<'de> serde::Deserialize<'de> for $body {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;

                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $body;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(stringify!($body))
                    }

                    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut fields: A) -> Result<$body, A::Error> {
                        let missing = serde::de::Error::missing_field;
                        Ok($body {$(
                            $field: bodies!(@read fields, $field, $type $(, $bound)?)?
                                .ok_or_else(|| missing(stringify!($field)))?,
                        )*})
                    }
                }

                deserializer.deserialize_struct(stringify!($body), &[$(stringify!($field)),*], Fields)
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@read $fields:ident, $field:ident, $type:ty) => { $fields.next_element() };
    (@read $fields:ident, $field:ident, $type:ty, $bound:expr) => {
        $fields.next_element_seed(crate::protocol::bounded::Bounded::<$type>::new(stringify!($field), $bound))
    };
}

/// Separates a field's name from the error message. No name contains it.
const FIELD_END: char = '\u{1f}';

/// Splits an error text into the field's name, or an empty text, and the message.
pub(crate) fn split_error(text: &str) -> (&str, &str) {
    text.split_once(FIELD_END).unwrap_or(("", text))
}

/// Reads a field of type `T`, a text or a list, within its bound.
pub(super) struct Bounded<T> {
    name: &'static str,
    most: usize,
    form: PhantomData<T>,
}

impl<T> Bounded<T> {
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, form: PhantomData }
    }

    fn error<E: Error>(&self, message: fmt::Arguments<'_>) -> E {
        E::custom(format_args!("{}{FIELD_END}{message}", self.name))
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Bounded<Vec<T>> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<Vec<T>> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let claimed = seq.size_hint().unwrap_or(0);
        let too_long = |count: usize| {
            self.error::<A::Error>(format_args!("a list of {count} elements: send at most {}", self.most))
        };
        if claimed > self.most {
            return Err(too_long(claimed));
        }
        let mut list = Vec::with_capacity(claimed);
        while let Some(element) = seq.next_element()? {
            if list.len() == self.most {
                return Err(too_long(list.len() + 1));
            }
            list.push(element);
        }
        Ok(list)
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<String> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Bounded<String> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {} bytes", self.most)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() <= self.most {
            return Ok(text.to_owned());
        }
        // If many elements have this field, the beginning of the text shows which one is meant.
        let beginning: String = text.chars().take(24).collect();
        let bytes = text.len();
        Err(self.error(format_args!("the text {beginning:?}… has {bytes} bytes: send at most {}", self.most)))
    }
}
