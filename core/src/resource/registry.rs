//! The registry of custom resource kinds. Names are learned at run time, and ids are never reassigned.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::ResourceId;
use crate::limits::RESOURCE_KINDS_MAX;

/// The kinds that this store knows, in the order in which it learned them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRegistry {
    names: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, ResourceId>,
    /// The configured names of unit-instance kinds. A name that ends in `*` matches all names with that
    /// prefix.
    declared: Vec<String>,
}

/// A kind that nodes have cannot change between unit-instance and plain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "resource `{name}` is {}a unit-instance resource in this store, and nodes have it: {} `unit_instance_resources`, or remove it from all nodes first",
    if *.unit_instance { "" } else { "not " },
    if *.unit_instance { "name it in" } else { "take it out of" }
)]
pub struct NatureFixed {
    /// Its name.
    pub name: String,
    /// True if it is a unit-instance kind now.
    pub unit_instance: bool,
}

/// The store cannot learn more kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this store already knows {RESOURCE_KINDS_MAX} resource kinds: use a known one")]
pub struct RegistryFull;

impl ResourceRegistry {
    /// Creates a registry that learns `names` in this order. The kinds at the indexes in `unit_instances` are
    /// unit-instance kinds.
    ///
    /// # Errors
    /// When there are too many names.
    pub fn with_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
        unit_instances: &[u16],
    ) -> Result<Self, RegistryFull> {
        let mut registry = Self::default();
        for name in names {
            registry.learn(name)?;
        }
        for &index in unit_instances {
            registry.set_nature(usize::from(index), true);
        }
        Ok(registry)
    }

    /// Sets which names are unit-instance kinds, for known kinds and for those learned later.
    ///
    /// # Errors
    /// Returns the first known kind that would change while it is `in_use`. Nothing has changed then.
    pub fn declare(
        &mut self,
        declared: &[String],
        in_use: impl Fn(ResourceId) -> bool,
    ) -> Result<(), NatureFixed> {
        let before = std::mem::replace(&mut self.declared, declared.to_vec());
        let changed: Vec<ResourceId> = self
            .ids()
            .filter(|&(name, id)| self.is_declared(name) != id.is_unit_instance())
            .map(|(_, id)| id)
            .collect();
        if let Some(&id) = changed.iter().find(|&&id| in_use(id)) {
            self.declared = before;
            let name = self.name(id).unwrap_or_default().to_owned();
            return Err(NatureFixed { name, unit_instance: id.is_unit_instance() });
        }
        for id in changed {
            self.set_nature(id.index(), !id.is_unit_instance());
        }
        Ok(())
    }

    fn is_declared(&self, name: &str) -> bool {
        self.declared.iter().any(|declared| match declared.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == declared,
        })
    }

    fn set_nature(&mut self, index: usize, unit_instance: bool) {
        let id = self.ids.get_mut(&self.names[index]).expect("every name has an id");
        *id = ResourceId::new(index as u16, unit_instance);
    }

    /// Returns all names with their ids, in the order of learning.
    fn ids(&self) -> impl Iterator<Item = (&str, ResourceId)> {
        self.names.iter().map(|name| (&**name, self.ids[name]))
    }

    /// Returns the indexes of the unit-instance kinds, ascending.
    #[must_use]
    pub fn unit_instances(&self) -> Vec<u16> {
        self.ids().filter(|(_, id)| id.is_unit_instance()).map(|(_, id)| id.index() as u16).collect()
    }

    /// Returns the id that `name` has or would get.
    ///
    /// # Panics
    /// When the name is new and the registry is full.
    #[must_use]
    pub fn id_to_be(&self, name: &str) -> ResourceId {
        self.id(name).unwrap_or_else(|| ResourceId::new(self.names.len() as u16, self.is_declared(name)))
    }

    /// Returns the id of `name`, and learns it if it is new.
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
        let id = self.id_to_be(name);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        Ok(id)
    }

    /// Returns the id of a known name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ResourceId> {
        self.ids.get(name).copied()
    }

    /// Returns the name of an id of this registry.
    #[must_use]
    pub fn name(&self, id: ResourceId) -> Option<&str> {
        self.names.get(id.index()).map(AsRef::as_ref)
    }

    /// Returns all names, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// Returns the number of known kinds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether no kind is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

const _: () = assert!(RESOURCE_KINDS_MAX <= 1 << 15, "the highest bit of an id is taken");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_order_of_learning_and_stay() {
        let mut registry = ResourceRegistry::with_names(["fpga", "licence"], &[]).unwrap();
        assert_eq!(registry.learn("licence"), Ok(ResourceId(1)));
        assert_eq!(registry.learn("port"), Ok(ResourceId(2)));
        assert_eq!(registry.id("fpga"), Some(ResourceId(0)));
        assert_eq!(registry.name(ResourceId(2)), Some("port"));
        assert_eq!(registry.id("tpu"), None);
    }

    #[test]
    fn a_kind_keeps_its_nature_while_it_is_in_use() {
        let mut registry = ResourceRegistry::with_names(["fpga", "mig-1g"], &[]).unwrap();
        let declared = ["mig-*".to_owned()];
        let refused = registry.declare(&declared, |_| true).unwrap_err();
        assert!(refused.to_string().contains("`mig-1g`"), "{refused}");
        assert_eq!(registry.learn("mig-2g"), Ok(ResourceId(2)), "nothing was declared");
        registry.declare(&declared, |_| false).unwrap();
        assert_eq!(registry.unit_instances(), [1, 2]);
        assert!(registry.learn("mig-3g").unwrap().is_unit_instance());
        assert_eq!(registry.name(registry.id("mig-3g").unwrap()), Some("mig-3g"));
        let names: Vec<String> = registry.names().map(str::to_owned).collect();
        let again =
            ResourceRegistry::with_names(names.iter().map(String::as_str), &registry.unit_instances())
                .unwrap();
        assert_eq!(again.id("mig-1g"), registry.id("mig-1g"));
    }

    #[test]
    fn a_full_registry_refuses_new_names_and_keeps_the_known() {
        let names: Vec<String> = (0..RESOURCE_KINDS_MAX).map(|i| format!("r{i}")).collect();
        let mut registry = ResourceRegistry::with_names(names.iter().map(String::as_str), &[]).unwrap();
        assert_eq!(registry.learn("one more"), Err(RegistryFull));
        assert_eq!(registry.learn("r7"), Ok(ResourceId(7)));
    }
}
