//! The roles of identities: which messages each may send.

use std::fmt;
use std::str::FromStr;

/// A right to send some kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Role {
    /// Places and releases work, and keeps groups.
    Submit = 1,
    /// Reports a node and its heartbeats.
    NodeAgent = 2,
    /// Reads nodes, books, changes and events.
    Observer = 4,
    /// Commits statements on any node, and reads what it plans on.
    Planner = 8,
    /// May send every message.
    Admin = 16,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Submit, Self::NodeAgent, Self::Observer, Self::Planner, Self::Admin];

    /// Returns the role's name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::NodeAgent => "node-agent",
            Self::Observer => "observer",
            Self::Planner => "planner",
            Self::Admin => "admin",
        }
    }
}

/// A text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role: give submit, node-agent, observer, planner or admin")]
pub struct ParseRoleError(String);

impl FromStr for Role {
    type Err = ParseRoleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|role| role.name() == text);
        known.ok_or_else(|| ParseRoleError(text.to_owned()))
    }
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// Every role.
    pub const EVERY: Self = Self::of(&Role::ALL);

    /// Returns the set of these roles.
    #[must_use]
    pub const fn of(roles: &[Role]) -> Self {
        let mut set = 0;
        let mut at = 0;
        while at < roles.len() {
            set |= roles[at] as u8;
            at += 1;
        }
        Self(set)
    }

    /// Returns whether both sets have a role in common.
    #[must_use]
    pub const fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |set, role| set | role as u8))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Role::ALL.into_iter().filter(|&role| self.has_any(Self::of(&[role]))).map(Role::name);
        write!(f, "{}", names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}
