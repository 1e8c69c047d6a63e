//! Tenants that are bound to queues: all that such a tenant gets is charged to one queue, or to queues below it.
//!
//! The settings of the service bind tenants, and each request brings its binding with it. So a binding that changes holds
//! from the next request on.

use std::sync::Arc;

use super::{Jobs, QueueId};

/// The queue to which a tenant is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantQueue {
    /// The name of the tenant.
    pub tenant: Arc<str>,
    /// The name of the queue.
    pub queue: Arc<str>,
}

/// The reason why a bound tenant may not use a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// The queue of the tenant does not exist.
    #[error(
        "tenant `{}` is bound to queue `{}` (setting `tenants.queue`), and there is no such queue: let an administrator \
         make it, or bind the tenant to another one",
        .0.tenant,
        .0.queue
    )]
    NoQueue(Arc<TenantQueue>),
    /// The named queue is neither that of the tenant nor below it.
    #[error(
        "tenant `{}` is bound to queue `{}` (setting `tenants.queue`), and queue `{named}` is neither that one nor below \
         it: name `{}` or a queue below it, or name none",
        of.tenant,
        of.queue,
        of.queue
    )]
    Outside {
        /// The named queue.
        named: Arc<str>,
        /// The queue of the tenant.
        of: Arc<TenantQueue>,
    },
}

impl Jobs {
    /// Checks that a tenant with this binding may name a queue. Whether the queue itself takes something is another question.
    ///
    /// # Errors
    /// The queue of the tenant does not exist, or the named one is not within it.
    pub fn check_binding(
        &self,
        named: &Arc<str>,
        bound: Option<&Arc<TenantQueue>>,
    ) -> Result<(), BindingError> {
        let Some(of) = bound else { return Ok(()) };
        let known = |name: &str| self.queue_named(name).filter(|&id| id != QueueId::ROOT);
        let Some(outer) = known(&of.queue) else { return Err(BindingError::NoQueue(Arc::clone(of))) };
        let is_within = known(named).is_some_and(|id| self.chain(id).any(|queue| queue == outer));
        if is_within {
            return Ok(());
        }
        Err(BindingError::Outside { named: Arc::clone(named), of: Arc::clone(of) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::QueueSpec;

    #[test]
    fn a_bound_tenant_names_its_queue_or_one_below_it() {
        let mut jobs = Jobs::new();
        let [_, outer] = ["other", "outer"].map(|name| jobs.add_queue(QueueSpec::new(name)).unwrap());
        let middle = jobs.add_queue(QueueSpec { parent: outer, ..QueueSpec::new("middle") }).unwrap();
        jobs.add_queue(QueueSpec { parent: middle, ..QueueSpec::new("inner") }).unwrap();
        let bound = |queue: &str| Arc::new(TenantQueue { tenant: "red".into(), queue: queue.into() });
        let check = |named: &str, to: &str| jobs.check_binding(&named.into(), Some(&bound(to)));
        for named in ["middle", "inner"] {
            assert_eq!(check(named, "middle"), Ok(()));
        }
        for named in ["outer", "other", "nobody", "root"] {
            let outside = BindingError::Outside { named: named.into(), of: bound("middle") };
            assert_eq!(check(named, "middle"), Err(outside.clone()));
            let said = outside.to_string();
            assert!(["`red`", "`middle`", named].iter().all(|part| said.contains(part)), "{said}");
        }
        for missing in ["nobody", "root"] {
            assert_eq!(check("middle", missing), Err(BindingError::NoQueue(bound(missing))));
        }
        assert_eq!(jobs.check_binding(&"nobody".into(), None), Ok(()), "a tenant without a binding");
    }
}
