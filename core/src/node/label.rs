//! Labels: keys and values that selectors refer to.

use std::sync::Arc;

/// The label that contains the model of a node's GPUs.
pub const GPU_MODEL_LABEL: &str = "gpu-model";

/// The labels of one node, sorted by unique key. The texts are shared between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

/// The reason why a set of labels is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// A key is given twice.
    #[error("label `{0}` is given twice: give each key once")]
    Twice(Arc<str>),
}

impl Labels {
    /// Creates labels from pairs in any order.
    ///
    /// # Errors
    /// When a key is given twice.
    pub fn new(mut pairs: Vec<(Arc<str>, Arc<str>)>) -> Result<Self, LabelsError> {
        pairs.sort_unstable();
        if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LabelsError::Twice(Arc::clone(&pair[0].0)));
        }
        Ok(Self(pairs.into()))
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Returns all pairs, in order of key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// Returns all pairs, in order of key, with their shared texts.
    pub(crate) fn pairs(&self) -> &[(Arc<str>, Arc<str>)] {
        &self.0
    }

    /// Returns the same labels with every text replaced by the result of `share`.
    #[must_use]
    pub fn shared(&self, mut share: impl FnMut(&Arc<str>) -> Arc<str>) -> Self {
        Self(self.0.iter().map(|(key, value)| (share(key), share(value))).collect())
    }

    /// Returns the number of labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_key_and_refused_when_given_twice() {
        let labels =
            Labels::new(vec![("zone".into(), "b".into()), ("gpu-model".into(), "T4".into())]).unwrap();
        assert_eq!(labels.get("zone"), Some("b"));
        assert_eq!(labels.get("rack"), None);
        assert_eq!(labels.iter().next(), Some(("gpu-model", "T4")));
        let twice = Labels::new(vec![("zone".into(), "b".into()), ("zone".into(), "a".into())]);
        assert_eq!(twice, Err(LabelsError::Twice("zone".into())));
    }
}
