//! Taints and tolerations: nodes that repel work, and work that tolerates them.
//!
//! The rules are those of Kubernetes. A node fits only if each of its `NoSchedule` taints is tolerated. An
//! untolerated `PreferNoSchedule` taint only ranks the node after all others. `NoExecute` counts as
//! `NoSchedule` for new work. It does not end running work.

use std::sync::Arc;

/// The effect of a taint on work that does not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// New work is not placed there.
    NoSchedule,
    /// New work is placed there only if no other node fits.
    PreferNoSchedule,
    /// The same as `NoSchedule` for new work. Running work stays.
    NoExecute,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value. It may be empty.
    pub value: Arc<str>,
    /// Its effect.
    pub effect: TaintEffect,
}

/// The taints of one node, sorted. Each key occurs at most once per effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taints(Option<Arc<[Taint]>>);

/// The reason why a set of taints is invalid: a key is given twice with one effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("taint `{0}` is given twice with one effect: give each key once per effect")]
pub struct TaintTwice(pub Arc<str>);

impl Taints {
    /// Creates taints from a list in any order.
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

    /// Returns the same taints with every text replaced by the result of `share`.
    #[must_use]
    pub fn shared(&self, mut share: impl FnMut(&Arc<str>) -> Arc<str>) -> Self {
        let taints = self.0.as_ref().map(|taints| {
            let taint = |t: &Taint| Taint { key: share(&t.key), value: share(&t.value), effect: t.effect };
            taints.iter().map(taint).collect()
        });
        Self(taints)
    }

    /// Returns all taints, in order of key and effect.
    #[must_use]
    pub fn as_slice(&self) -> &[Taint] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// Returns whether there are no taints.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The comparison that a toleration makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// The key must match.
    Exists,
    /// Key and value must match.
    Equal,
}

/// A taint that a request tolerates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// The taint's key. An empty key with `Exists` matches every key.
    pub key: String,
    /// The comparison.
    pub operator: TolerationOperator,
    /// The taint's value. Empty for `Exists`.
    pub value: String,
    /// The taint's effect. `None` matches every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Returns whether work with this toleration tolerates `taint`.
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
    fn a_key_occurs_once_per_effect() {
        let both = vec![taint("a", "2", NoSchedule), taint("a", "1", PreferNoSchedule)];
        assert_eq!(Taints::new(both).unwrap().as_slice().len(), 2);
        let twice = vec![taint("a", "1", NoSchedule), taint("a", "2", NoSchedule)];
        assert_eq!(Taints::new(twice), Err(TaintTwice("a".into())));
        assert!(Taints::new(Vec::new()).unwrap().is_empty());
    }
}
