//! What can be wrong with a trace. Every complaint names the file, the line, the column, what
//! was found there, and what to do.

use std::fmt;
use std::io;

use wharf_core::limits::{GPU_INSTANCES_MAX, NAME_BYTES_MAX, SELECTOR_TERMS_MAX};

/// Where in a trace something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// Counted from 1; the header is line 1.
    pub line: u64,
    /// The column, as the header spells it.
    pub column: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}, column `{}`", self.file, self.line, self.column)
    }
}

/// What is wrong with one cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The row ends before the column.
    #[error("the row has no such column: give every column that the header names")]
    Missing,
    /// Nothing where a name must stand.
    #[error("the name is empty: give each row a name")]
    EmptyName,
    /// A name that the engine cannot keep.
    #[error("the name has {0} bytes: give at most {NAME_BYTES_MAX}")]
    LongName(usize),
    /// A name that an earlier row has.
    #[error("`{name}` stands on line {first} already: give each name once")]
    Twice {
        /// The name.
        name: String,
        /// Where it stood first.
        first: u64,
    },
    /// Text that is no number.
    #[error("`{0}` is not a number: give a whole number without unit")]
    NotANumber(String),
    /// Below zero.
    #[error("`{0}` is negative: give zero or more")]
    Negative(String),
    /// More than the engine counts to.
    #[error("`{found}` is out of range: give at most {most}")]
    TooLarge {
        /// What stands there.
        found: String,
        /// The largest accepted.
        most: i64,
    },
    /// More devices than a node can have.
    #[error("{0} GPUs: one node has at most {GPU_INSTANCES_MAX}")]
    TooManyGpus(i64),
    /// More of one device than there is.
    #[error("{0} thousandths of one GPU: give at most 1000; for several whole GPUs set `num_gpu`")]
    AboveOneGpu(i64),
    /// One GPU is asked for, and nothing of it.
    #[error("0 thousandths of one GPU: give 1 to 1000, or set `num_gpu` to 0")]
    NothingOfOneGpu,
    /// A list of models with a hole.
    #[error("`{0}` names an empty model: separate models by a single `|`, or leave the field empty")]
    EmptyModel(String),
    /// A list of models that no selector can carry.
    #[error("{0} models: give at most {SELECTOR_TERMS_MAX}")]
    TooManyModels(usize),
    /// Gone before it came.
    #[error("deleted at {deleted}, before it was created at {created}: correct one of them")]
    DeletedBeforeCreated {
        /// The column `creation_time`.
        created: u64,
        /// This column.
        deleted: u64,
    },
    /// A time is needed and not there.
    #[error("the time is missing, and departures are replayed: give it, or replay without departures")]
    NoTime,
}

/// A trace that cannot be read. Nothing of it was loaded.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: give a file that can be")]
    Io {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The bytes are no CSV in UTF-8.
    #[error("{file}: line {line}: {reason}: give comma-separated rows in UTF-8")]
    NotCsv {
        /// The file.
        file: String,
        /// Where.
        line: u64,
        /// Why.
        reason: String,
    },
    /// The header lacks a column.
    #[error("{file}: line 1: the header has no column `{column}`: it needs {expected}")]
    NoColumn {
        /// The file.
        file: String,
        /// What is missing.
        column: &'static str,
        /// All that is needed.
        expected: String,
    },
    /// A row has more fields than the header.
    #[error(
        "{file}: line {line}: {found} fields under {columns} columns: a comma too many, or a name that needs quotes"
    )]
    SurplusFields {
        /// The file.
        file: String,
        /// Where.
        line: u64,
        /// Fields of the row.
        found: usize,
        /// Columns of the header.
        columns: usize,
    },
    /// One cell is wrong.
    #[error("{place}: {fault}")]
    Cell {
        /// Where.
        place: Place,
        /// What.
        fault: Fault,
    },
}
