//! The error of files and directories.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A file or directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct FileError {
    /// The file or directory.
    pub path: PathBuf,
    /// The fault, its place in the file, and the remedy.
    pub message: String,
}

impl FileError {
    /// Creates the error of `path`.
    pub fn new(path: &Path, message: impl Display) -> Self {
        Self { path: path.to_owned(), message: message.to_string() }
    }
}
