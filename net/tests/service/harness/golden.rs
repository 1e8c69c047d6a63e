//! Bodies byte for byte.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{decode_body, encode_body};

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the bytes of a body, and that they are read back unchanged.
#[track_caller]
pub fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &T, expected: &str) {
    let mut bytes = Vec::new();
    encode_body(body, &mut bytes);
    assert_eq!(hex(&bytes), expected);
    let (read, taken) = decode_body::<T>(&bytes).expect("a body");
    assert_eq!((&read, taken), (body, bytes.len()));
}
