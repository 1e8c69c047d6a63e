//! The selection policies over a plain list of fitting nodes.

use wharf_core::request::Policy;

/// A node that fits exactly.
#[derive(Clone, Debug)]
pub struct Fitting<T> {
    /// The node's place in the order of registration.
    pub ordinal: u64,
    /// The node's coordinate in the resource space.
    pub coordinate: Vec<i64>,
    /// The caller's name for the node.
    pub node: T,
}

/// The answers that a policy may give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// No node fits.
    Nothing,
    /// Only this node is correct.
    Only(T),
    /// Any of these nodes is correct.
    AnyOf(Vec<T>),
}

impl<T: PartialEq> Choice<T> {
    /// Returns whether `answer` is correct.
    #[must_use]
    pub fn allows(&self, answer: Option<&T>) -> bool {
        match (self, answer) {
            (Self::Nothing, None) => true,
            (Self::Only(node), Some(answer)) => node == answer,
            (Self::AnyOf(nodes), Some(answer)) => nodes.contains(answer),
            _ => false,
        }
    }
}

/// Returns what `policy` answers over `fitting`, which is in order of registration. `cursor` is the ordinal of
/// the last choice of NextFit or Spread, and these two policies advance it.
pub fn choose<T: Clone>(policy: Policy, fitting: &[Fitting<T>], cursor: &mut u64) -> Choice<T> {
    let Some(first) = fitting.first() else {
        return Choice::Nothing;
    };
    let mut chosen = first;
    match policy {
        Policy::LeastFit => {
            for candidate in fitting {
                // Strictly greater: among equal nodes the first registered one wins.
                if candidate.coordinate > chosen.coordinate {
                    chosen = candidate;
                }
            }
        }
        Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
            for candidate in fitting {
                if candidate.coordinate < chosen.coordinate {
                    chosen = candidate;
                }
            }
        }
        Policy::FirstFit => {}
        Policy::NextFit => {
            for candidate in fitting {
                if candidate.ordinal >= *cursor {
                    chosen = candidate;
                    break;
                }
            }
            *cursor = chosen.ordinal;
        }
        Policy::Spread => {
            for candidate in fitting {
                if candidate.ordinal > *cursor {
                    chosen = candidate;
                    break;
                }
            }
            *cursor = chosen.ordinal;
        }
        Policy::Hybrid => unreachable!("the hybrid policy uses utilisation, which another function handles"),
        Policy::Random => return Choice::AnyOf(fitting.iter().map(|f| f.node.clone()).collect()),
    }
    Choice::Only(chosen.node.clone())
}
