//! Broken invariants, as checks report them.

/// A broken invariant. The text says what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

impl Broken {
    /// Describes a broken invariant.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Returns the description.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.0
    }
}

/// Checkers that collect several kinds of findings keep the text.
impl From<Broken> for String {
    fn from(Broken(what): Broken) -> Self {
        what
    }
}

/// Describes a broken invariant, with arguments like those of `format!`.
macro_rules! broken {
    ($($argument:tt)*) => {
        $crate::broken::Broken::new(format!($($argument)*))
    };
}
pub(crate) use broken;
