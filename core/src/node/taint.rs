//! Taints and tolerations: nodes that keep work away, and work that bears them.
//!
//! The rules are those of Kubernetes: a node fits only if each of its `NoSchedule` taints is
//! tolerated; an untolerated `PreferNoSchedule` only puts the node behind all others. `NoExecute`
//! counts as `NoSchedule` for new work; it ends nothing that runs.

use std::sync::Arc;

/// What a taint does to work that does not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// New work is not placed there.
    NoSchedule,
    /// New work is placed there only where no other node fits.
    PreferNoSchedule,
    /// As `NoSchedule` for new work. What runs stays.
    NoExecute,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value; may be empty.
    pub value: Arc<str>,
    /// Its effect.
    pub effect: TaintEffect,
}

/// The taints of one node: sorted, each key at most once per effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taints(Option<Arc<[Taint]>>);

/// Taints that a node cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("taint `{0}` is given twice with one effect: give each key once per effect")]
pub struct TaintTwice(pub Arc<str>);

impl Taints {
    /// Taints in any order.
    ///
    /// # Errors
    /// When a key is given twice with the same effect.
    pub fn new(mut taints: Vec<Taint>) -> Result<Self, TaintTwice> {
        taints.sort_unstable_by(|a, b| (&a.key, a.effect).cmp(&(&b.key, b.effect)));
        let twice =
            taints.windows(2).find(|pair| (&pair[0].key, pair[0].effect) == (&pair[1].key, pair[1].effect));
        if let Some(pair) = twice {
            return Err(TaintTwice(Arc::clone(&pair[0].key)));
        }
        Ok(Self((!taints.is_empty()).then(|| taints.into())))
    }

    /// The same taints with every text exchanged for what `share` answers.
    #[must_use]
    pub fn shared(&self, mut share: impl FnMut(&Arc<str>) -> Arc<str>) -> Self {
        let taints = self.0.as_ref().map(|taints| {
            let taint = |t: &Taint| Taint { key: share(&t.key), value: share(&t.value), effect: t.effect };
            taints.iter().map(taint).collect()
        });
        Self(taints)
    }

    /// All of them, in order of key and effect.
    #[must_use]
    pub fn as_slice(&self) -> &[Taint] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// How a toleration compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// The key is enough.
    Exists,
    /// Key and value must be the taint's.
    Equal,
}

/// A taint that a request bears.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// The taint's key; empty, with `Exists`, for every key.
    pub key: String,
    /// The comparison.
    pub operator: TolerationOperator,
    /// The taint's value; empty for `Exists`.
    pub value: String,
    /// The taint's effect; every effect if none.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Whether work with this toleration bears `taint`.
    #[must_use]
    pub fn bears(&self, taint: &Taint) -> bool {
        let key = match self.operator {
            TolerationOperator::Exists => self.key.is_empty() || *self.key == *taint.key,
            TolerationOperator::Equal => *self.key == *taint.key && *self.value == *taint.value,
        };
        key && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    use TolerationOperator::{Equal, Exists};

    fn taint(key: &str, value: &str, effect: TaintEffect) -> Taint {
        Taint { key: key.into(), value: value.into(), effect }
    }

    #[test]
    fn tolerations_bear_taints_as_in_kubernetes() {
        let dedicated = taint("dedicated", "ml", NoSchedule);
        let cases = [
            (("dedicated", Equal, "ml", None), true),
            (("dedicated", Equal, "ml", Some(NoSchedule)), true),
            (("dedicated", Equal, "ml", Some(NoExecute)), false),
            (("dedicated", Equal, "web", None), false),
            (("dedicated", Exists, "", None), true),
            (("dedicated", Exists, "", Some(PreferNoSchedule)), false),
            (("gpu", Exists, "", None), false),
            (("", Exists, "", None), true),
            (("", Exists, "", Some(NoExecute)), false),
        ];
        for ((key, operator, value, effect), expected) in cases {
            let toleration = Toleration { key: key.into(), operator, value: value.into(), effect };
            assert_eq!(toleration.bears(&dedicated), expected, "{toleration:?}");
        }
    }

    #[test]
    fn a_key_stands_once_per_effect() {
        let both = vec![taint("a", "2", NoSchedule), taint("a", "1", PreferNoSchedule)];
        assert_eq!(Taints::new(both).unwrap().as_slice().len(), 2);
        let twice = vec![taint("a", "1", NoSchedule), taint("a", "2", NoSchedule)];
        assert_eq!(Taints::new(twice), Err(TaintTwice("a".into())));
        assert!(Taints::new(Vec::new()).unwrap().is_empty());
    }
}
