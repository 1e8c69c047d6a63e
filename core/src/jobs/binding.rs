//! Queues that the settings of the service give to requests: those of bound tenants, and the default queue.
//!
//! All that a bound tenant gets is charged to one queue, or to queues below it. The default queue is charged for what names
//! no queue and comes from nobody who is bound.
//!
//! Each request brings its binding with it. So settings that change hold from the next request on.

use std::sync::Arc;

use super::{Jobs, NotCharged, QueueId};
use crate::ids::TenantId;

/// The queue to which a tenant is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantQueue {
    /// The name of the tenant.
    pub tenant: Arc<str>,
    /// The name of the queue.
    pub queue: Arc<str>,
}

/// The queue of requests that name none, by the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// That of a tenant, which may use no queue outside of it.
    Tenant(TenantQueue),
    /// The default queue, by its name. Requests may name any other one.
    Default(Arc<str>),
}

impl Binding {
    /// Returns the name of the queue.
    #[must_use]
    pub const fn queue(&self) -> &Arc<str> {
        match self {
            Self::Tenant(TenantQueue { queue, .. }) | Self::Default(queue) => queue,
        }
    }
}

/// The reason why the default queue takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefaultFault {
    /// It does not exist.
    #[error("there is no such queue: let an administrator make it, or name another one")]
    Unknown,
    /// It has queues below it.
    #[error("it has queues below it: name one of these, or let an administrator change the setting")]
    Inner,
    /// It is closed.
    #[error("it is closed: let an administrator open it, or name another one")]
    Closed,
    /// It is for another tenant.
    #[error(
        "it belongs to another tenant: name a queue of your own, or let an administrator change the setting"
    )]
    Foreign,
}

/// The reason why a request may not use a queue, by its binding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    /// The queue of the tenant does not exist.
    #[error(
        "tenant `{}` is bound to queue `{}` (setting `tenants.queue`), and there is no such queue: let an administrator \
         make it, or bind the tenant to another one",
        .0.tenant,
        .0.queue
    )]
    NoQueue(TenantQueue),
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
        of: TenantQueue,
    },
    /// The default queue takes nothing.
    #[error(
        "queue `{queue}` is the default queue, for what names none (setting `jobs.default_queue`), and {fault}"
    )]
    Default {
        /// The default queue.
        queue: Arc<str>,
        /// The reason.
        fault: DefaultFault,
    },
}

impl Jobs {
    /// Checks that a request of a tenant may name a queue by its binding. Of the default queue, it also checks that the queue
    /// takes something, because its client may not know why it goes there. Of others, that is another question.
    ///
    /// # Errors
    /// The queue of the tenant does not exist, the named one is not within it, or the default queue takes nothing.
    pub fn check_binding(
        &self,
        named: &Arc<str>,
        tenant: TenantId,
        bound: Option<&Binding>,
    ) -> Result<(), BindingError> {
        match bound {
            None => Ok(()),
            Some(Binding::Tenant(of)) => self.check_tenant_queue(named, of),
            Some(Binding::Default(queue)) if queue == named => self.check_default_queue(queue, tenant),
            Some(Binding::Default(_)) => Ok(()),
        }
    }

    fn check_tenant_queue(&self, named: &Arc<str>, of: &TenantQueue) -> Result<(), BindingError> {
        let known = |name: &str| self.queue_named(name).filter(|&id| id != QueueId::ROOT);
        let Some(outer) = known(&of.queue) else { return Err(BindingError::NoQueue(of.clone())) };
        let is_within = known(named).is_some_and(|id| self.chain(id).any(|queue| queue == outer));
        if is_within {
            return Ok(());
        }
        Err(BindingError::Outside { named: Arc::clone(named), of: of.clone() })
    }

    /// Checks that the default queue takes what a tenant asks for.
    ///
    /// # Errors
    /// The reason why not.
    fn check_default_queue(&self, queue: &Arc<str>, tenant: TenantId) -> Result<(), BindingError> {
        let fault = match self.chargeable(queue, tenant) {
            Ok(_) => return Ok(()),
            Err(NotCharged::UnknownQueue(_)) => DefaultFault::Unknown,
            Err(NotCharged::InnerQueue(_)) => DefaultFault::Inner,
            Err(NotCharged::ClosedQueue(_)) => DefaultFault::Closed,
            Err(NotCharged::ForeignQueue(_)) => DefaultFault::Foreign,
            Err(other) => unreachable!("no reason of the queue alone: {other:?}"),
        };
        Err(BindingError::Default { queue: Arc::clone(queue), fault })
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
        let bound = |queue: &str| TenantQueue { tenant: "red".into(), queue: queue.into() };
        let check = |named: &str, to: &str| {
            jobs.check_binding(&named.into(), TenantId(1), Some(&Binding::Tenant(bound(to))))
        };
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
        let unbound = jobs.check_binding(&"nobody".into(), TenantId(1), None);
        assert_eq!(unbound, Ok(()), "a tenant without a binding");
    }

    #[test]
    fn the_default_queue_takes_what_names_it_and_forbids_no_other() {
        let mut jobs = Jobs::new();
        let outer = jobs.add_queue(QueueSpec::new("outer")).unwrap();
        jobs.add_queue(QueueSpec { parent: outer, ..QueueSpec::new("inner") }).unwrap();
        jobs.add_queue(QueueSpec { open: false, ..QueueSpec::new("closed") }).unwrap();
        jobs.add_queue(QueueSpec { tenant: Some(TenantId(2)), ..QueueSpec::new("of-two") }).unwrap();
        let check = |named: &str, default: &str| {
            jobs.check_binding(&named.into(), TenantId(1), Some(&Binding::Default(default.into())))
        };
        assert_eq!(check("inner", "inner"), Ok(()));
        for named in ["closed", "outer", "nobody"] {
            assert_eq!(check(named, "inner"), Ok(()), "what is named is checked as ever");
        }
        for (queue, fault, remedy) in [
            ("nobody", DefaultFault::Unknown, "let an administrator make it"),
            ("root", DefaultFault::Unknown, "let an administrator make it"),
            ("outer", DefaultFault::Inner, "name one of these"),
            ("closed", DefaultFault::Closed, "let an administrator open it"),
            ("of-two", DefaultFault::Foreign, "name a queue of your own"),
        ] {
            let error = BindingError::Default { queue: queue.into(), fault };
            assert_eq!(check(queue, queue), Err(error.clone()));
            let said = error.to_string();
            assert!([queue, "`jobs.default_queue`", remedy].iter().all(|part| said.contains(part)), "{said}");
        }
        let operator = jobs.check_default_queue(&"of-two".into(), TenantId::OPERATOR);
        assert_eq!(operator, Ok(()), "the operator uses all queues");
    }
}
