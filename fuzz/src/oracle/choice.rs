//! The selection policies over a plain list of fitting nodes.

use wharf_core::request::Policy;

/// A node that fits exactly.
#[derive(Clone, Debug)]
pub struct Fitting<T> {
    /// Its place in the order of registration.
    pub ordinal: u64,
    /// Where it stands in the resource space.
    pub coordinate: Vec<i64>,
    /// The caller's name for it.
    pub node: T,
}

/// What a policy may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// Nothing fits.
    Nothing,
    /// This node and no other.
    Only(T),
    /// Any of these.
    AnyOf(Vec<T>),
}

impl<T: PartialEq> Choice<T> {
    /// Whether `answer` is right.
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

/// What `policy` answers over `fitting`, which is in order of registration; `cursor` is the
/// ordinal of the last choice of NextFit or Spread and moves with them.
pub fn choose<T: Clone>(policy: Policy, fitting: &[Fitting<T>], cursor: &mut u64) -> Choice<T> {
    let Some(first) = fitting.first() else {
        return Choice::Nothing;
    };
    let mut chosen = first;
    match policy {
        Policy::LeastFit => {
            for candidate in fitting {
                // Strictly: of equal ones the first registered stays.
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
        Policy::Hybrid => unreachable!("the hybrid policy goes by utilisation, which stands elsewhere"),
        Policy::Random => return Choice::AnyOf(fitting.iter().map(|f| f.node.clone()).collect()),
    }
    Choice::Only(chosen.node.clone())
}
