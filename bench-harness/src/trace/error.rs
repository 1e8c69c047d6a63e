//! Errors of a trace. Every message names the file, the line, the column, what was found there, and what to
//! do.

use std::fmt;
use std::io;

use wharf_core::limits::{GPU_INSTANCES_MAX, NAME_BYTES_MAX, SELECTOR_TERMS_MAX};

/// The location of a fault in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, counted from 1; the header is line 1.
    pub line: u64,
    /// The column, as spelled in the header.
    pub column: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}, column `{}`", self.file, self.line, self.column)
    }
}

/// The fault of one cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The row ends before the column.
    #[error("the row has no such column: give every column that the header names")]
    Missing,
    /// A required name is empty.
    #[error("the name is empty: give each row a name")]
    EmptyName,
    /// The name is too long for the engine.
    #[error("the name has {0} bytes: give at most {NAME_BYTES_MAX}")]
    LongName(usize),
    /// An earlier row has the same name.
    #[error("`{name}` is on line {first} already: give each name once")]
    Twice {
        /// The name.
        name: String,
        /// The line of the first occurrence.
        first: u64,
    },
    /// The text is not a number.
    #[error("`{0}` is not a number: give a whole number without unit")]
    NotANumber(String),
    /// The number is negative.
    #[error("`{0}` is negative: give zero or more")]
    Negative(String),
    /// The number is larger than the engine supports.
    #[error("`{found}` is out of range: give at most {most}")]
    TooLarge {
        /// The number found.
        found: String,
        /// The largest accepted number.
        most: i64,
    },
    /// More devices than a node can have.
    #[error("{0} GPUs: one node has at most {GPU_INSTANCES_MAX}")]
    TooManyGpus(i64),
    /// More of one device than a whole one.
    #[error("{0} thousandths of one GPU: give at most 1000; for several whole GPUs set `num_gpu`")]
    AboveOneGpu(i64),
    /// One GPU is requested, but none of its capacity.
    #[error("0 thousandths of one GPU: give 1 to 1000, or set `num_gpu` to 0")]
    NothingOfOneGpu,
    /// A list of models has an empty entry.
    #[error("`{0}` names an empty model: separate models by a single `|`, or leave the field empty")]
    EmptyModel(String),
    /// A list has more models than a selector can have.
    #[error("{0} models: give at most {SELECTOR_TERMS_MAX}")]
    TooManyModels(usize),
    /// The deletion time is before the creation time.
    #[error("deleted at {deleted}, before it was created at {created}: correct one of them")]
    DeletedBeforeCreated {
        /// The column `creation_time`.
        created: u64,
        /// This column.
        deleted: u64,
    },
    /// A required time is missing.
    #[error("the time is missing, and departures are replayed: give it, or replay without departures")]
    NoTime,
}

/// A trace cannot be read. Nothing of it is loaded.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: give a file that can be")]
    Io {
        /// The file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// The file is not CSV in UTF-8.
    #[error("{file}: line {line}: {reason}: give comma-separated rows in UTF-8")]
    NotCsv {
        /// The file.
        file: String,
        /// The line number.
        line: u64,
        /// The cause.
        reason: String,
    },
    /// The header lacks a column.
    #[error("{file}: line 1: the header has no column `{column}`: it needs {expected}")]
    NoColumn {
        /// The file.
        file: String,
        /// The missing column.
        column: &'static str,
        /// All required columns.
        expected: String,
    },
    /// A row has more fields than the header.
    #[error(
        "{file}: line {line}: {found} fields under {columns} columns: a comma too many, or a name that needs quotes"
    )]
    SurplusFields {
        /// The file.
        file: String,
        /// The line number.
        line: u64,
        /// The number of fields in the row.
        found: usize,
        /// The number of columns in the header.
        columns: usize,
    },
    /// One cell is invalid.
    #[error("{place}: {fault}")]
    Cell {
        /// The location.
        place: Place,
        /// The fault.
        fault: Fault,
    },
}
