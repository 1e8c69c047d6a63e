//! The registry of custom resource kinds: names learnt at run time, ids never reassigned.

use std::sync::Arc;

use crate::ids::ResourceId;
use crate::limits::RESOURCE_KINDS_MAX;
use crate::map::FixedMap;

/// The kinds that this store has learnt, in the order in which it learnt them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRegistry {
    names: Vec<Arc<str>>,
    ids: FixedMap<Arc<str>, ResourceId>,
}

/// The store knows as many kinds as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this store already knows {RESOURCE_KINDS_MAX} resource kinds: use a known one")]
pub struct RegistryFull;

impl ResourceRegistry {
    /// A registry with `names` learnt in this order.
    ///
    /// # Errors
    /// When there are too many.
    pub fn with_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, RegistryFull> {
        let mut registry = Self::default();
        for name in names {
            registry.learn(name)?;
        }
        Ok(registry)
    }

    /// The id of `name`, learnt now if it is new.
    ///
    /// # Errors
    /// When the name is new and the registry is full.
    pub fn learn(&mut self, name: &str) -> Result<ResourceId, RegistryFull> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        if self.names.len() >= RESOURCE_KINDS_MAX {
            return Err(RegistryFull);
        }
        let id = ResourceId(u16::try_from(self.names.len()).expect("RESOURCE_KINDS_MAX fits u16"));
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        Ok(id)
    }

    /// The id of a name that is known.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ResourceId> {
        self.ids.get(name).copied()
    }

    /// The name of an id of this registry.
    #[must_use]
    pub fn name(&self, id: ResourceId) -> Option<&str> {
        self.names.get(usize::from(id.0)).map(AsRef::as_ref)
    }

    /// All names, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// How many kinds are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no kind is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

const _: () = assert!(RESOURCE_KINDS_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_order_of_learning_and_stay() {
        let mut registry = ResourceRegistry::with_names(["fpga", "licence"]).unwrap();
        assert_eq!(registry.learn("licence"), Ok(ResourceId(1)));
        assert_eq!(registry.learn("port"), Ok(ResourceId(2)));
        assert_eq!(registry.id("fpga"), Some(ResourceId(0)));
        assert_eq!(registry.name(ResourceId(2)), Some("port"));
        assert_eq!(registry.id("tpu"), None);
    }

    #[test]
    fn a_full_registry_refuses_new_names_and_keeps_the_known() {
        let names: Vec<String> = (0..RESOURCE_KINDS_MAX).map(|i| format!("r{i}")).collect();
        let mut registry = ResourceRegistry::with_names(names.iter().map(String::as_str)).unwrap();
        assert_eq!(registry.learn("one more"), Err(RegistryFull));
        assert_eq!(registry.learn("r7"), Ok(ResourceId(7)));
    }
}
