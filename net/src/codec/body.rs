//! Bodies, by `bincode` 2 (little-endian, variable-length integers). The only module that
//! knows it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::FRAME_BYTES_MAX;

/// A body that is not what its kind and version say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body cannot be read: {0}")]
pub struct BodyError(pub String);

fn format() -> impl bincode::config::Config {
    // The limit counts bytes that a body claims, so that a short frame cannot ask for much memory.
    bincode::config::standard().with_limit::<{ FRAME_BYTES_MAX as usize }>()
}

/// Appends `body` to `out`.
///
/// # Panics
/// When the body is larger than a frame may be: our own messages are within their limits.
pub fn encode_body<T: Serialize>(body: &T, out: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(body, out, bincode::config::standard())
        .expect("writing to memory does not fail, and all our types can be encoded");
}

/// Reads a body from the front of `bytes`; the body, and how many bytes it took.
///
/// # Errors
/// When `bytes` does not begin with such a body within its limits.
pub fn decode_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), BodyError> {
    bincode::serde::decode_from_slice(bytes, format()).map_err(|error| BodyError(error.to_string()))
}
