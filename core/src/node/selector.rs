//! Selectors: terms over labels. A node must satisfy all terms.
//!
//! The operators are those of Kubernetes, Nomad and Ray. As there, a node without the key satisfies only the
//! negations. `Greater` and `Less` compare integers (i64). A label that is not an integer satisfies neither.

use super::Labels;
use crate::hash::stable_hash;

/// The comparison that a term makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label exists, with any value.
    Exists,
    /// The label is absent.
    NotExists,
    /// The label is an integer above the value.
    Greater,
    /// The label is an integer below the value.
    Less,
}

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// The label's key.
    pub key: String,
    /// The comparison.
    pub operator: Operator,
    /// The values to compare with: none for `Exists` and `NotExists`, one integer for `Greater` and `Less`.
    pub values: Vec<String>,
}

impl Term {
    fn holds(&self, labels: &Labels) -> bool {
        self.holds_for(labels.get(&self.key))
    }

    /// Returns whether the term holds for a node whose label has this value, or for a node without the label.
    pub(crate) fn holds_for(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.iter().any(|v| v == value)),
            Operator::NotIn => value.is_none_or(|value| self.values.iter().all(|v| v != value)),
            Operator::Exists => value.is_some(),
            Operator::NotExists => value.is_none(),
            Operator::Greater => self.compares(value, |label, operand| label > operand),
            Operator::Less => self.compares(value, |label, operand| label < operand),
        }
    }

    fn compares(&self, label: Option<&str>, holds: fn(i64, i64) -> bool) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let operand = self.values.first().and_then(|value| number(value));
        label.and_then(number).zip(operand).is_some_and(|(label, operand)| holds(label, operand))
    }
}

/// Terms that must all hold, with their hash.
///
/// With the hash, a shard finds the candidate set of a selector without hashing strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
    hash: u64,
}

impl Selector {
    /// Creates a selector from `terms`, in canonical order.
    #[must_use]
    pub fn new(mut terms: Vec<Term>) -> Self {
        for term in &mut terms {
            term.values.sort_unstable();
            term.values.dedup();
        }
        terms.sort_unstable_by(|a, b| {
            (&a.key, a.operator as u8, &a.values).cmp(&(&b.key, b.operator as u8, &b.values))
        });
        terms.dedup();
        let mut bytes = Vec::new();
        for term in &terms {
            bytes.push(term.operator as u8);
            for text in std::iter::once(&term.key).chain(&term.values) {
                bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
            bytes.push(0xFF);
        }
        let hash = stable_hash(&bytes);
        Self { terms, hash }
    }

    /// Returns the terms, in canonical order.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns the hash. Equal selectors have equal hashes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns whether all terms hold.
    #[must_use]
    pub fn holds(&self, labels: &Labels) -> bool {
        self.terms.iter().all(|term| term.holds(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(key: &str, operator: Operator, values: &[&str]) -> Term {
        Term { key: key.into(), operator, values: values.iter().map(|&v| v.into()).collect() }
    }

    #[test]
    fn operators_hold_as_in_kubernetes() {
        let labels = Labels::new(vec![("gpu-model".into(), "T4".into())]).unwrap();
        let cases = [
            (term("gpu-model", Operator::In, &["P100", "T4"]), true),
            (term("gpu-model", Operator::In, &["P100"]), false),
            (term("zone", Operator::In, &["a"]), false),
            (term("gpu-model", Operator::NotIn, &["T4"]), false),
            (term("gpu-model", Operator::NotIn, &["P100"]), true),
            (term("zone", Operator::NotIn, &["a"]), true),
            (term("gpu-model", Operator::Exists, &[]), true),
            (term("zone", Operator::Exists, &[]), false),
            (term("zone", Operator::NotExists, &[]), true),
            (term("gpu-model", Operator::NotExists, &[]), false),
        ];
        for (term, expected) in cases {
            assert_eq!(Selector::new(vec![term.clone()]).holds(&labels), expected, "{term:?}");
        }
    }

    #[test]
    fn integers_compare_and_what_is_none_satisfies_nothing() {
        let label = |text: &str| Labels::new(vec![("cores".into(), text.into())]).unwrap();
        for (label, greater, less) in [
            (label("8"), false, false),
            (label("9"), true, false),
            (label("-9"), false, true),
            (label("7"), false, true),
            (label("9223372036854775807"), true, false),
            (label("9223372036854775808"), false, false),
            (label("many"), false, false),
            (label(""), false, false),
            (Labels::default(), false, false),
        ] {
            let holds = |operator| Selector::new(vec![term("cores", operator, &["8"])]).holds(&label);
            assert_eq!((holds(Operator::Greater), holds(Operator::Less)), (greater, less), "{label:?}");
        }
    }

    #[test]
    fn equal_selectors_are_equal_in_any_spelling() {
        let a = Selector::new(vec![term("a", Operator::In, &["x", "y"]), term("b", Operator::Exists, &[])]);
        let b =
            Selector::new(vec![term("b", Operator::Exists, &[]), term("a", Operator::In, &["y", "x", "y"])]);
        assert_eq!(a, b);
        let c = Selector::new(vec![term("a", Operator::In, &["xy"]), term("b", Operator::Exists, &[])]);
        assert_ne!(a.hash(), c.hash());
    }
}
