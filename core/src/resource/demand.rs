//! The resources of one placement: cpu, memory, GPUs and custom resources.

use std::sync::Arc;

use crate::ids::ResourceId;
use crate::resource::{Amount, GpuRequest};

/// Amounts of custom resources, sorted by unique id. No amount is zero.
pub type CustomAmounts = Arc<[(ResourceId, Amount)]>;

/// A vector of resources: what a request asks for, and what its allocation holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Cores.
    pub cpu: Amount,
    /// MiB.
    pub memory: Amount,
    /// Whole devices, or a part of one.
    pub gpu: GpuRequest,
    /// Custom kinds, if any. They are shared because requests of one shape repeat.
    pub custom: Option<CustomAmounts>,
}

impl Demand {
    /// Returns custom amounts in canonical form (sorted, without zeros), or `None` if there are none.
    ///
    /// # Errors
    /// Returns the id if one is given twice.
    pub fn canonical_custom(
        mut amounts: Vec<(ResourceId, Amount)>,
    ) -> Result<Option<CustomAmounts>, ResourceId> {
        amounts.sort_unstable_by_key(|&(id, _)| id);
        if let Some(pair) = amounts.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(pair[0].0);
        }
        amounts.retain(|&(_, amount)| !amount.is_zero());
        Ok((!amounts.is_empty()).then(|| amounts.into()))
    }

    /// Returns the custom amounts. The slice is empty if there are none.
    #[must_use]
    pub fn custom(&self) -> &[(ResourceId, Amount)] {
        self.custom.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_amounts_are_canonical() {
        let a = ResourceId(1);
        let b = ResourceId(2);
        let one = Amount::whole(1);
        let custom = Demand::canonical_custom(vec![(b, one), (a, one)]).unwrap().unwrap();
        assert_eq!(&custom[..], [(a, one), (b, one)]);
        assert_eq!(Demand::canonical_custom(vec![(a, Amount::ZERO)]), Ok(None));
        assert_eq!(Demand::canonical_custom(vec![(a, one), (a, Amount::ZERO)]), Err(a));
    }
}
