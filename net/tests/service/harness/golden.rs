//! Bodies byte for byte.

use std::io::Write;
use std::process::{Command, Stdio};

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
    let name = std::any::type_name::<T>();
    let name = name.rsplit("::").next().expect("a path");
    read_by_page(&format!("body {name} {expected} {}", json(body)));
}

/// Returns a body as JSON, with the names of its fields.
pub fn json<T: Serialize>(body: &T) -> String {
    serde_json::to_string(body).expect("bodies are plain data")
}

/// Has a decoder in Python read a frame or body, which knows only the page of the protocol. Skipped without Python,
/// unless `WHARF_REQUIRE_PYTHON` is set.
#[track_caller]
pub fn read_by_page(case: &str) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut python = Command::new("python3");
    python.current_dir(root).args(["net/tests/decoder/wharf_decoder.py", "docs/protocol.md"]);
    let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut decoder = match started {
        Ok(decoder) => decoder,
        Err(error) if std::env::var_os("WHARF_REQUIRE_PYTHON").is_none() => {
            return println!("skipped: the decoder in Python does not run: {error}");
        }
        Err(error) => panic!("the decoder in Python must run: {error}"),
    };
    let mut input = decoder.stdin.take().expect("it is piped");
    input.write_all(case.as_bytes()).expect("it reads all cases");
    drop(input);
    let ended = decoder.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && ended.stdout.starts_with(b"1 cases, 0 differ"), "{said}");
}
