//! What the run of a fuzz target finds.

/// Something that does not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding(String);

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Finding {}

impl From<String> for Finding {
    fn from(what: String) -> Self {
        Self(what)
    }
}

impl From<&str> for Finding {
    fn from(what: &str) -> Self {
        Self(what.to_owned())
    }
}

/// Checkers of the simulator have texts as their findings.
impl From<Finding> for String {
    fn from(Finding(what): Finding) -> Self {
        what
    }
}

/// Returns a finding.
pub(crate) fn found<T>(what: impl Into<Finding>) -> Result<T, Finding> {
    Err(what.into())
}
