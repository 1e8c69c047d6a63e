//! The portable file of a store: its checkpoint and its journal, without the databases that hold them.
//!
//! The file begins with [`MAGIC`] and the number of its version. Records follow, each with a tag, the length of its
//! content, its content, and a hash. The hash covers the record and the hash before it, so a reader finds each record that
//! is changed, missing, doubled or at another place. The last record ends the file. Numbers are little-endian.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wharf_core::hash::stable_hash;
use wharf_net::codec::{decode_stored, encode_body};

use crate::file_error::FileError;

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"wharfexp";
/// The version of the file's format. What the records hold is versioned by the store.
const VERSION: u32 = 1;
/// The number of bytes that are read at once.
const INPUT_BYTES: usize = 1 << 18;
/// No record is longer.
const CONTENT_BYTES_MAX: u32 = 1 << 30;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// A [`Head`]. The first record.
    Head = 1,
    /// Rows of the checkpoint, encoded one after the other.
    Rows = 2,
    /// The value of an append.
    Value = 3,
    /// An [`End`]. The last record.
    End = 4,
}

impl Tag {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Head, Self::Rows, Self::Value, Self::End].into_iter().find(|&tag| tag as u8 == number)
    }
}

/// What the file says of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The identity of the store that was exported.
    pub(super) store: [u8; 16],
    /// The numbers of the store by name, with its format.
    pub(super) numbers: Vec<(String, u64)>,
    /// The hash of the checkpoint. `None`: there is none, because the store was never stopped.
    pub(super) hash: Option<u128>,
}

impl Head {
    /// Returns a number of the store; 0 if it is not there.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.numbers.iter().find(|(of, _)| of == name).map_or(0, |&(_, number)| number)
    }
}

/// What the file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Records with rows of the checkpoint.
    pub rows: u64,
    /// Appends after the checkpoint.
    pub appends: u64,
    /// The last of them. 0: there is none.
    pub last: u64,
}

/// Returns the hash of a record after `before`.
fn link(before: u64, tag: u8, content: &[u8]) -> u64 {
    let mut linked = before.to_le_bytes().to_vec();
    linked.push(tag);
    linked.extend_from_slice(&stable_hash(content).to_le_bytes());
    linked.extend_from_slice(&(content.len() as u64).to_le_bytes());
    stable_hash(&linked)
}

/// Encodes records, one after the other.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    chain: u64,
}

impl Encoder {
    /// Appends the beginning of the file.
    pub(super) fn begin(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        Self::default()
    }

    /// Appends a record.
    pub(super) fn record(&mut self, tag: Tag, content: &[u8], out: &mut Vec<u8>) {
        let length = u32::try_from(content.len()).expect("no row and no value is as long");
        assert!(length <= CONTENT_BYTES_MAX, "a record of {length} bytes could not be read");
        out.push(tag as u8);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(content);
        self.chain = link(self.chain, tag as u8, content);
        out.extend_from_slice(&self.chain.to_le_bytes());
    }

    /// Appends a record with a body.
    pub(super) fn body(&mut self, tag: Tag, body: &impl Serialize, out: &mut Vec<u8>) {
        let mut content = Vec::new();
        encode_body(body, &mut content);
        self.record(tag, &content, out);
    }
}

/// Reads a portable file.
pub(super) struct Decoder<R> {
    path: PathBuf,
    input: BufReader<R>,
    /// Where the next record begins.
    offset: u64,
    chain: u64,
    is_over: bool,
}

impl Decoder<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read, or is none of this version.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(|error| FileError::new(path, error))?;
        Self::begin(path, file)
    }
}

impl<R: Read> Decoder<R> {
    /// Begins to read the content of a file. `path` is its name in error messages.
    ///
    /// # Errors
    /// When it cannot be read, or is none of this version.
    pub(super) fn begin(path: &Path, input: R) -> Result<Self, FileError> {
        let input = BufReader::with_capacity(INPUT_BYTES, input);
        let mut decoder = Self { path: path.to_owned(), input, offset: 0, chain: 0, is_over: false };
        let begin: [u8; 8] = decoder.take()?;
        if begin != MAGIC {
            return Err(FileError::new(
                path,
                "is no export of a journal: its first bytes are not `wharfexp`",
            ));
        }
        let version = u32::from_le_bytes(decoder.take()?);
        if version != VERSION {
            let message = format!(
                "has version {version}, and this program reads version {VERSION}: use the one that wrote it"
            );
            return Err(FileError::new(path, message));
        }
        decoder.offset = MAGIC.len() as u64 + 4;
        Ok(decoder)
    }

    /// Returns the error of this file at the current record.
    pub(super) fn damage(&self, what: impl std::fmt::Display) -> FileError {
        FileError::new(&self.path, format_args!("is damaged at byte {}: {what}; export again", self.offset))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(|error| self.read_error(&error))?;
        Ok(bytes)
    }

    fn read_error(&self, error: &std::io::Error) -> FileError {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            self.damage("it ends before its last record")
        } else {
            FileError::new(&self.path, error)
        }
    }

    /// Reads the next record. `None` after the last one.
    ///
    /// # Errors
    /// When the file is not as it was written.
    pub(super) fn next(&mut self) -> Result<Option<(Tag, Vec<u8>)>, FileError> {
        if self.is_over {
            let mut more = [0];
            return match self.input.read(&mut more) {
                Ok(0) => Ok(None),
                Ok(_) => Err(self.damage("something follows its last record")),
                Err(error) => Err(self.read_error(&error)),
            };
        }
        let [number] = self.take()?;
        let length = u32::from_le_bytes(self.take()?);
        if length > CONTENT_BYTES_MAX {
            return Err(self.damage(format_args!("a record claims {length} bytes")));
        }
        let mut content = Vec::new();
        let read = self.input.by_ref().take(u64::from(length)).read_to_end(&mut content);
        let read = read.map_err(|error| self.read_error(&error))?;
        if read < length as usize {
            return Err(self.damage("it ends before its last record"));
        }
        let chain = u64::from_le_bytes(self.take()?);
        if chain != link(self.chain, number, &content) {
            return Err(self.damage("the hash of a record is not that of its bytes"));
        }
        let tag = Tag::from_number(number).ok_or_else(|| self.damage(format_args!("{number} is no tag")))?;
        self.chain = chain;
        self.offset += 1 + 4 + 8 + u64::from(length);
        self.is_over = tag == Tag::End;
        Ok(Some((tag, content)))
    }

    /// Decodes the content of a record.
    ///
    /// # Errors
    /// When it has another form.
    pub(super) fn body<T: serde::de::DeserializeOwned>(&self, content: &[u8]) -> Result<T, FileError> {
        match decode_stored(content) {
            Ok((body, read)) if read == content.len() => Ok(body),
            Ok(_) => Err(self.damage("a record is longer than its body")),
            Err(error) => Err(self.damage(error)),
        }
    }
}
