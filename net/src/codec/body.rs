//! Encoding of bodies with `bincode` 2 (little-endian, variable-length integers). No other module uses it.

use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::CLAIM_BYTES_MAX;
use crate::protocol::bounded::split_error;

/// A body that does not match its kind and version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body cannot be read: {message}")]
pub struct BodyError {
    /// The field that is wrong, or empty if unknown.
    pub field: String,
    /// The problem and, if there is one, the remedy.
    pub message: String,
}

impl From<DecodeError> for BodyError {
    fn from(error: DecodeError) -> Self {
        // The errors of `bincode` make sense only to readers of its source.
        let message = match error {
            DecodeError::OtherString(text) => {
                let (field, message) = split_error(&text);
                return Self { field: field.to_owned(), message: message.to_owned() };
            }
            DecodeError::UnexpectedEnd { .. } => "it ends before its last field".to_owned(),
            DecodeError::LimitExceeded => {
                format!("it claims more than {CLAIM_BYTES_MAX} bytes: send less per message")
            }
            DecodeError::Utf8 { inner } => format!("a text is not UTF-8: {inner}"),
            DecodeError::InvalidBooleanValue(value) => format!("{value} is no truth value: send 0 or 1"),
            _ => "its bytes are not those of its kind and version".to_owned(),
        };
        Self { field: String::new(), message }
    }
}

fn format() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<CLAIM_BYTES_MAX>()
}

/// Appends to a vector. The writer of `bincode` for anything that implements [`std::io::Write`] took twice the instructions.
struct Appending<'a>(&'a mut Vec<u8>);

impl Writer for Appending<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Appends `body` to `out`.
///
/// # Panics
/// Never panics: writing to memory does not fail, and every type of the protocol can be encoded.
pub fn encode_body<T: Serialize>(body: &T, out: &mut Vec<u8>) {
    bincode::serde::encode_into_writer(body, Appending(out), bincode::config::standard())
        .expect("writing to memory does not fail, and all our types can be encoded");
}

/// Reads a body from the front of `bytes`. Returns the body and the number of bytes read.
///
/// # Errors
/// Fails if `bytes` does not begin with such a body within its limits.
pub fn decode_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), BodyError> {
    bincode::serde::decode_from_slice(bytes, format()).map_err(BodyError::from)
}

/// Reads a body that this service has written to its store from the front of `bytes`. Its length has no limit, but it may
/// not claim more than so many bytes can hold. Returns the body and the number of bytes read.
///
/// # Errors
/// Fails if `bytes` does not begin with such a body.
pub fn decode_stored<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), BodyError> {
    const SHORT: usize = 1 << 20;
    const LONG: usize = 1 << 25;
    const LONGEST: usize = 1 << 30;
    let standard = bincode::config::standard();
    // The limit is a constant of the format. A number of one byte counts at its full width, which is 16 at most.
    let read = if bytes.len() <= SHORT {
        bincode::serde::decode_from_slice(bytes, standard.with_limit::<{ 16 * SHORT }>())
    } else if bytes.len() <= LONG {
        bincode::serde::decode_from_slice(bytes, standard.with_limit::<{ 16 * LONG }>())
    } else {
        bincode::serde::decode_from_slice(bytes, standard.with_limit::<{ 16 * LONGEST }>())
    };
    Ok(read?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FRAME_BYTES_MAX;

    #[test]
    fn a_whole_frame_of_small_numbers_can_be_read() {
        let numbers = vec![0u64; FRAME_BYTES_MAX as usize - 64];
        let mut bytes = Vec::new();
        encode_body(&numbers, &mut bytes);
        assert_eq!(decode_body::<Vec<u64>>(&bytes), Ok((numbers, bytes.len())));
    }

    #[test]
    fn a_text_that_claims_more_than_any_frame_is_refused() {
        let claim = [&[253][..], &(1u64 << 60).to_le_bytes()].concat();
        assert!(decode_body::<String>(&claim).is_err());
        assert!(decode_body::<Vec<u8>>(&claim).is_err());
    }

    #[test]
    fn a_number_may_have_a_longer_form_than_it_needs() {
        for long in [&[251, 7, 0][..], &[252, 7, 0, 0, 0], &[253, 7, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(decode_body::<u64>(long), Ok((7, long.len())));
        }
        let mut shortest = Vec::new();
        encode_body(&7u64, &mut shortest);
        assert_eq!(shortest, [7]);
    }

    #[test]
    fn a_stored_text_that_claims_more_than_there_is_asks_for_no_memory() {
        let claim = [&[253][..], &(1u64 << 60).to_le_bytes()].concat();
        assert!(decode_stored::<String>(&claim).is_err());
        let numbers = vec![0u128; 3 << 20];
        let mut bytes = Vec::new();
        encode_body(&numbers, &mut bytes);
        assert_eq!(decode_stored::<Vec<u128>>(&bytes), Ok((numbers, bytes.len())));
    }
}
